// One task, lists of tasks, and what may be done to them.

import { change, read } from "./api.js";
import { byId, count, exactInstant, fill, make, named, plural, row, rows, say, short, span } from "./format.js";
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
  // The list of tasks is at the form that asked for it, or under the row of the cause that is open.
  #found = byId("found");
  #home = this.#found.parentElement;
  #openKey = null;
  causeRow = null;

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
      this.#closeCause();
      this.#list({ status: byId("list-status").value }, null);
    };
    byId("more").onclick = () => this.#list(this.#asked, this.#cursor);
  }

  /** Return whether the dead letters of a cause are listed under its row. */
  isOpen(key) {
    return this.#openKey === key;
  }

  /** List the dead letters with a cause under its row, or close that list. */
  openCause = async ({ error, kind }, key) => {
    const wasOpen = this.isOpen(key);
    this.#closeCause();
    if (wasOpen || !await this.#list({ status: "FAILURE", error, ...(kind === null ? {} : { kind }) }, null)) return;
    const clicked = [...byId("cause-rows").children].find((one) => one.dataset.key === key);
    if (!clicked) return;
    this.#openKey = key;
    this.causeRow = row("open cause", make("td", { className: "all", colSpan: 6 }, this.#found));
    this.causeRow.className = "open";
    clicked.after(this.causeRow);
    clicked.querySelector(".cause").setAttribute("aria-expanded", "true");
    // As much of the list as there is room for below the row, which stays in view.
    this.#found.scrollIntoView({ block: "nearest" });
    clicked.scrollIntoView({ block: "nearest" });
    this.#found.querySelector("#found-rows button")?.focus({ preventScroll: true });
  };

  /** Close the list of a cause that no dead letter has any more. */
  keepCause(keys) {
    if (this.#openKey !== null && !keys.includes(this.#openKey)) this.#closeCause();
  }

  #closeCause() {
    if (this.#openKey === null) return;
    this.#found.hidden = true;
    this.#home.append(this.#found);
    this.causeRow.previousElementSibling?.querySelector(".cause")?.setAttribute("aria-expanded", "false");
    this.causeRow.remove();
    this.#openKey = this.causeRow = null;
  }

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
    const verbs = !this.#queue.changes ? [] : { PENDING: ["redrive as new", "cancel"], TAKEN: ["cancel by force"], FAILURE: [...(task.redrivable ? ["redrive"] : []), "redrive as new", "purge"] }[task.status] ?? [];
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

  /** Show a page of a list of tasks; return whether it was read. */
  async #list(asked, cursor) {
    try {
      const page = await read("tasks", { ...asked, cursor: cursor ?? "" });
      this.#asked = asked;
      this.#cursor = page.cursor;
      say("found-note", asked.error === undefined ? "" : `dead letters${ofCause(asked)}`);
      const found = page.rows.map((task) => row(task.task_id, make("td", { className: "id all" }, taskLink(task.task_id, this.show)), make("td", {}, task.status),
        named("kind", "", short(task.kind)), named("group", "", short(task.group)), named("age", "number", span(task.age_seconds))));
      if (cursor === null) rows("found-rows", found, 5, "none");
      else byId("found-rows").append(...found);
      byId("found").hidden = false;
      byId("more").hidden = page.cursor === null;
      return true;
    } catch (error) {
      say("said", error.message);
      return false;
    }
  }
}
