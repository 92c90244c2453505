// One task, lists of tasks, and what may be done to them.

import { change, read } from "./api.js";
import { byId, count, exactInstant, fill, make, plural, row, rows, say, short, span } from "./format.js";
import { progressText, taskLink } from "./panels.js";

const QUESTIONS = {
  purge: ({ id }) => `Delete dead letter ${id}? This cannot be undone.`,
  cancel: ({ id }) => `Cancel task ${id}? It will not run.`,
  "cancel by force": ({ id }) => `Cancel the running task ${id}? Its run is asked to stop, and its result is dropped.`,
  "redrive all": ({ tasks, cause }) => `Return ${plural(tasks, "dead letter")}${ofCause(cause)} to their lines? Those that are stale stay.`,
  "redrive all as new": ({ tasks, cause }) => `Return ${plural(tasks, "dead letter")}${ofCause(cause)} to their lines, as if they were put now?`,
};

const ofCause = (cause) => (cause ? ` with the error "${cause.error}"` : "");

// Resolves the question that is asked; null if none is.
let answer = null;

function answered(yes) {
  const resolve = answer;
  answer = null;
  resolve?.(yes);
}

/** Ask a question; resolves to whether the answer was yes. */
function confirmed(text) {
  const dialog = byId("ask");
  // The event of a dialog that was closed may come after the next question: that one is still open then.
  answered(false);
  dialog.onclose = () => { if (!dialog.open) answered(dialog.returnValue === "yes"); };
  say("ask-text", text);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => { answer = resolve; });
}

/** Do something to a task (`id`), to dead letters (`tasks` of a `cause`) or to the queue, after a question if it cannot be undone; say what was done. */
export async function act(verb, of = {}, said = "said") {
  const question = QUESTIONS[verb];
  if (question && !await confirmed(question(of))) return false;
  try {
    say(said, await change(verb, { id: of.id, cause: of.cause }));
  } catch (error) {
    say(said, error.message);
    return false;
  }
  return true;
}

/** Describe an ended attempt; its traceback opens. */
function attemptOf({ number, started, ended, worker, outcome, error, traceback }) {
  const took = started === null ? "" : ` after ${span(Math.max(0, ended - started))}`;
  const head = `Attempt ${number} ${outcome}${took}${worker === null ? "" : ` by ${worker}`}`;
  return make("li", {}, make("time", { dateTime: new Date(ended * 1000).toISOString() }, exactInstant(ended)), head,
    ...(error ? [make("p", { className: "attempt" }, error)] : []),
    ...(traceback ? [make("details", {}, make("summary", {}, "Traceback"), make("pre", { tabIndex: 0 }, traceback))] : []));
}

export class Tasks {
  #queue;
  #cursor = null;
  #asked = {};

  constructor(queue) {
    this.#queue = queue;
    byId("task-close").onclick = () => byId("task").close();
    byId("task").addEventListener("close", () => byId("task-contents").replaceChildren());
    byId("find").onsubmit = (event) => {
      event.preventDefault();
      const id = byId("find-id").value.trim();
      if (id) this.show(id, "find-said");
    };
    byId("list").onsubmit = (event) => {
      event.preventDefault();
      this.#list({ status: byId("list-status").value }, null);
    };
    byId("more").onclick = () => this.#list(this.#asked, this.#cursor);
  }

  /** List the dead letters with a cause. */
  listCause = async ({ error, kind }) => {
    byId("list-status").value = "FAILURE";
    await this.#list({ status: "FAILURE", error, ...(kind === null ? {} : { kind }) }, null);
    byId("found").scrollIntoView({ block: "nearest" });
    byId("found-rows").querySelector("button")?.focus();
  };

  /** Show a task in a dialog: everything but its payload and result. */
  show = async (id, said = "said") => {
    say(said, "");
    try {
      const task = await read("task", { id });
      say("task-said", "");
      this.#fill(task);
      if (!byId("task").open) byId("task").showModal();
    } catch (error) {
      say(said, error.message);
    }
  };

  #fill(task) {
    say("task-id", task.task_id);
    say("task-status", task.delayed ? "delayed" : task.status);
    const facts = [["age", span(task.age_seconds)], ["attempts", count(task.attempts)], ["priority", count(task.priority)],
      ["group", task.group ?? "–"], ["kind", task.kind ?? "–"]];
    if (task.shed_reason) facts.push(["shed by", task.shed_reason]);
    if (task.progress_fraction !== null) facts.push(["progress", progressText(task)]);
    byId("task-facts").replaceChildren(
      ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
      ...(task.error ? [make("div", { className: "all" }, make("dt", {}, "error"), make("dd", {}, task.error))] : []));
    const now = Date.now() / 1000;
    byId("task-history").replaceChildren(...task.history.map(({ at, event }) =>
      make("li", { className: at > now ? "ahead" : "" }, make("time", { dateTime: new Date(at * 1000).toISOString() }, exactInstant(at)), event)));
    byId("task-attempts-head").hidden = !task.attempt_log.length;
    fill(byId("task-attempts"), ...task.attempt_log.map(attemptOf));
    byId("task-contents").hidden = true;
    byId("task-actions").replaceChildren(...this.#buttons(task));
  }

  #buttons(task) {
    const shown = make("button", { type: "button", className: "button" }, task.has_result ? "Show payload and result" : "Show payload");
    shown.onclick = async () => {
      try {
        const found = await read("contents", { id: task.task_id });
        byId("task-contents").textContent = JSON.stringify(task.has_result ? found : found.payload, null, 2);
        byId("task-contents").hidden = false;
        shown.disabled = true;
      } catch (error) {
        say("task-said", error.message);
      }
    };
    const verbs = !this.#queue.changes ? [] : { PENDING: ["redrive as new", "cancel"], TAKEN: ["cancel by force"], FAILURE: ["redrive", "redrive as new", "purge"] }[task.status] ?? [];
    const names = { cancel: "Cancel", "cancel by force": "Cancel", redrive: "Redrive", "redrive as new": "Redrive as new", purge: "Delete" };
    return [shown, ...verbs.map((verb) => make("button", {
      type: "button",
      className: "button",
      onclick: async () => {
        if (!await act(verb, { id: task.task_id }, "task-said")) return;
        if (verb === "purge") byId("task").close();
        else this.#fill(await read("task", { id: task.task_id }));
      },
    }, names[verb]))];
  }

  async #list(asked, cursor) {
    try {
      const page = await read("tasks", { ...asked, cursor: cursor ?? "" });
      this.#asked = asked;
      this.#cursor = page.cursor;
      say("found-note", asked.error === undefined ? "" : `dead letters${ofCause(asked)}`);
      const found = page.rows.map((task) => row(task.task_id, make("td", {}, taskLink(task.task_id, this.show)), make("td", {}, task.status),
        make("td", {}, short(task.kind)), make("td", { className: "wide" }, short(task.group)), make("td", { className: "number" }, span(task.age_seconds))));
      if (cursor === null) rows("found-rows", found, 5, "none");
      else byId("found-rows").append(...found);
      byId("found").hidden = false;
      byId("more").hidden = page.cursor === null;
    } catch (error) {
      say("said", error.message);
    }
  }
}
