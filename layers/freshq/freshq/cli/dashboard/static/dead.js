// Dead letters by cause, the latest ones, and the redrive that is under way.

import { act } from "./tasks.js";
import { byId, count, make, named, plural, row, rows, say, short, span } from "./format.js";
import { taskLink } from "./panels.js";

const VERBS = { Redrive: "redrive", "Redrive as new": "redrive as new", Delete: "purge" };

function button(text, name, key, onclick) {
  const one = make("button", { type: "button", className: "button small", onclick }, text);
  one.setAttribute("aria-label", name);
  one.dataset.key = key;
  return one;
}

/** Show the causes of all dead letters; `tasks` lists those of one under its row. */
export function showCauses({ causes, redrive, at_ms: atMs }, queue, tasks) {
  const ago = (seconds) => `${span(Math.max(0, Math.round(atMs / 1000 - seconds)))} ago`;
  const under = redrive !== null && redrive.said === null;
  say("causes-note", causes.complete ? `${plural(causes.count, "dead letter")}${causes.left_out ? `, and ${plural(causes.left_out, "rarer cause")}` : ""}`
    : `${plural(causes.count, "dead letter")} so far, still counting`);
  tasks.keepCause(causes.rows.map(keyOfCause));
  rows("cause-rows", causes.rows.flatMap((cause) => {
    const { error, kind } = cause;
    const key = keyOfCause(cause);
    const link = make("button", { type: "button", className: "link cause", onclick: () => tasks.openCause(cause, key) }, make("span", { className: "error" }, error));
    link.title = error;
    link.setAttribute("aria-expanded", tasks.isOpen(key));
    const redriven = (text, number) => {
      const one = button(text, `${text} ${plural(number, "dead letter")}: ${error}`, text,
        () => act(text === "Redrive" ? "redrive all" : "redrive all as new", { cause: { error, kind }, tasks: number }));
      one.disabled = under;
      return one;
    };
    const made = row(key,
      named("count", "number", count(cause.count)), named("kind", "", short(kind)), make("td", { className: "all" }, link),
      named("first", "number wide", ago(cause.first_at)), named("last", "number", ago(cause.last_at)),
      make("td", { className: "actions" }, ...(queue.changes ? [
        cause.stale < cause.count ? redriven("Redrive", cause.count - cause.stale) : null,
        cause.stale ? redriven("Redrive as new", cause.count) : null] : []).filter((one) => one)));
    return tasks.isOpen(key) ? [made, tasks.causeRow] : [made];
  }), 6, "no dead letters");
  showRedrive(redrive);
}

const keyOfCause = ({ error, kind }) => `cause ${kind} ${error}`;

function showRedrive(redrive) {
  byId("redrive").hidden = redrive === null;
  if (redrive === null) return;
  const of = redrive.error === null ? "" : `${redrive.error}: `;
  const bar = byId("redrive-bar");
  bar.hidden = redrive.said !== null;
  bar.max = Math.max(1, redrive.total);
  bar.value = redrive.seen;
  say("redrive-said", `${of}${redrive.said ?? `${count(redrive.seen)} of ${plural(redrive.total, "dead letter")} redriven`}`);
}

export function showDeadLetters({ causes, redrive, dead_letters: letters }, queue, show) {
  const of = causes.complete && causes.count > letters.length ? ` of ${count(causes.count)}` : "";
  say("dead-note", letters.length ? `the latest ${letters.length}${of}` : "");
  byId("redrive-all").hidden = !queue.changes || (causes.stale >= causes.count && !letters.some((letter) => letter.redrivable));
  byId("redrive-all").disabled = redrive !== null && redrive.said === null;
  byId("redrive-all").onclick = () => act("redrive all", { tasks: causes.count });
  const action = (text, letter) => button(text, `${text} ${letter.task_id}`, text, () => act(VERBS[text], { id: letter.task_id }));
  rows("dead-rows", letters.map((letter) => row(`dead ${letter.task_id}`,
    make("td", { className: "id all" }, taskLink(letter.task_id, show)),
    named("kind", "", short(letter.kind)),
    make("td", { className: "all" }, make("span", { className: "error", title: letter.error ?? "" }, letter.error ?? "–")),
    named("attempts", "number wide", count(letter.attempts)),
    named("since", "number", span(letter.since_seconds)),
    make("td", { className: "actions" }, ...(queue.changes ? [action(letter.redrivable ? "Redrive" : "Redrive as new", letter), action("Delete", letter)] : [])))), 6, "no dead letters");
}
