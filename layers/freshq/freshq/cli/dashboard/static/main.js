// Starts the page: reads what the queue is, then follows its snapshots.

import { follow, keepToken, NoToken, queueName, read, takeToken } from "./api.js";
import { RatesChart } from "./chart.js";
import { showCauses, showDeadLetters } from "./dead.js";
import { byId, instant, make, named, row, rows, say, span } from "./format.js";
import { showFates, showFigures, showGroups, showLeases, showPictureText, showQueues, showWaits } from "./panels.js";
import { Stack } from "./stack.js";
import { act, Tasks } from "./tasks.js";

const ORDERS = { lifo: "newest first", fifo: "oldest first", adaptive: "adaptive order", value: "most value first", deadline: "earliest deadline first" };
const RETRY_MS = [500, 1000, 2000, 5000];
const SCHEDULES_MS = 10_000;
const TEXT_MS = 5_000;
const QUEUES_MS = 2_000;
// A snapshot that is older than this, or than three times the pause between snapshots, is said to be old.
const OLD_MS = 5_000;

class Page {
  #queue;
  #tasks;
  #chart = new RatesChart(byId("rates"));
  #stack = null;
  #state = "";
  #paused = false;
  #textAt = 0;
  #snapshotAt = Date.now();
  #oldMs = OLD_MS;
  #pressed = false;
  #unshown = null;

  constructor(queue) {
    this.#queue = queue;
    this.#tasks = new Tasks(queue);
    document.title = `freshq: ${queue.name}`;
    say("queue-name", queue.name);
    say("chip-order", ORDERS[queue.order] ?? queue.order);
    say("chip-age", queue.has_deadline ? `stale after ${span(queue.max_age_seconds)}` : "never stale");
    if (!queue.has_deadline) say("stack-text", "New tasks enter at the top and sink as they age. A claimed task leaves to the right.");
    setInterval(() => this.#showAge(), 1000);
    byId("pause").hidden = !queue.changes;
    byId("pause").onclick = () => act(this.#paused ? "resume" : "pause");
    say("first-command", queue.first_command);
    // A row that moves or goes between press and release takes the click with it.
    addEventListener("pointerdown", () => { this.#pressed = true; }, true);
    for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => setTimeout(() => this.#release()), true);
    addEventListener("blur", ({ target }) => { if (target === window) this.#release(); });
    if (queue.has_schedules) {
      this.#showSchedules();
      setInterval(() => this.#showSchedules(), SCHEDULES_MS);
    }
  }

  take(event, value) {
    if (event === "history") {
      this.#oldMs = Math.max(OLD_MS, 3000 * value.every_seconds);
      this.#chart.begin(value.rates, 1000 * value.gap_seconds);
      this.#stack ??= new Stack(byId("stack"), this.#queue, value.every_seconds);
    } else if (event === "snapshot") this.#snapshot(value);
    else this.problem(`Cannot read the queue: ${value.problem}`, "not updated");
  }

  /** Say how old the figures are, if the store is slow. */
  #showAge() {
    const ageMs = Date.now() - this.#snapshotAt;
    const isOld = ageMs > this.#oldMs;
    say("chip-snapshot", isOld ? `updated ${span(Math.floor(ageMs / 1000))} ago` : "");
    if (isOld) byId("board").classList.add("stale");
  }

  #snapshot(snapshot) {
    this.#snapshotAt = Date.now();
    byId("problem").hidden = true;
    this.#chart.add({ at_ms: snapshot.at_ms, ...snapshot.rates });
    this.#stack.take(snapshot);
    if (this.#pressed) this.#unshown = snapshot;
    else this.#fill(snapshot);
  }

  /** Show the last snapshot that came while the pointer was pressed, after the click. */
  #release() {
    this.#pressed = false;
    if (this.#unshown) this.#fill(this.#unshown);
  }

  #fill(snapshot) {
    this.#unshown = null;
    byId("board").classList.remove("stale");
    this.#paused = snapshot.paused;
    say("pause", snapshot.paused ? "Resume" : "Pause");
    this.#show(snapshot.paused ? "paused" : snapshot.slowed ? "runs fail" : snapshot.overloaded ? "overloaded" : "live");
    byId("empty").hidden = !(snapshot.survey.complete && snapshot.survey.tasks === 0 && snapshot.stats.pending === 0);
    showFigures(snapshot);
    showWaits(snapshot.waits, this.#queue);
    showFates(snapshot.survey);
    showGroups(snapshot.groups);
    showLeases(snapshot, this.#queue, this.#tasks.show);
    showCauses(snapshot, this.#queue, this.#tasks);
    showDeadLetters(snapshot, this.#queue, this.#tasks.show);
    // A screen reader that reads the picture's text is not interrupted every second.
    if (Date.now() - this.#textAt > TEXT_MS) {
      this.#textAt = Date.now();
      showPictureText(snapshot, this.#queue);
    }
  }

  /** Say what state the queue is in; the change, and nothing else, is announced. */
  #show(state) {
    if (state === this.#state) return;
    if (this.#state) say("said", { paused: "The queue is paused.", "runs fail": "All runs of a worker fail: it has slowed down.", overloaded: "The queue is overloaded.", live: "The queue keeps up." }[state]);
    this.#state = byId("chip-state").dataset.state = state;
    say("chip-state", state);
  }

  problem(text, state) {
    byId("problem").hidden = false;
    say("problem", text);
    say("chip-state", state);
    this.#state = byId("chip-state").dataset.state = "lost";
    byId("board").classList.add("stale");
  }

  async #showSchedules() {
    try {
      const found = (await read("schedules")).rows;
      byId("schedules-none").hidden = true;
      byId("schedules").hidden = false;
      rows("schedule-rows", found.map((one) => row(one.name, make("td", { className: "all" }, one.name), named("when", "", one.when),
        named("fired up to", "", one.up_to === null ? "not started" : `${instant(one.up_to)}${one.failed ? `, ${one.failed} to retry` : ""}`),
        named("next", "", one.next === null ? "never" : instant(one.next)))), 4, "none");
    } catch (error) {
      say("said", `Cannot read the schedules: ${error.message}`);
    }
  }
}

/** List the queues as long as the page is open, if it names none and there are several; return false if not. */
async function listed() {
  for (;;) {
    const { rows: queues } = await read("queues");
    byId("all-queues").hidden = queues.length < 2;
    if (queueName() !== null || queues.length < 2) return false;
    say("queue-name", "Queues");
    say("chip-state", "live");
    byId("chip-state").dataset.state = "live";
    byId("problem").hidden = byId("gate").hidden = byId("all-queues").hidden = true;
    byId("queues").hidden = false;
    byId("queues").classList.remove("stale");
    showQueues(queues);
    await new Promise((resolve) => setTimeout(resolve, QUEUES_MS));
  }
}

/** Follow the queue, and begin again when the connection is lost. */
async function run() {
  let page = null;
  for (let failures = 0; ; failures++) {
    try {
      if (!page && await listed()) throw new Error("the list ended");
      page ??= new Page(await read("queue"));
      byId("gate").hidden = true;
      byId("board").hidden = false;
      await follow((event, value) => {
        failures = 0;
        page.take(event, value);
      });
      throw new Error("the dashboard ended");
    } catch (error) {
      if (error instanceof NoToken) {
        byId("gate").hidden = false;
        byId("board").hidden = true;
        say("chip-state", "no token");
        return;
      }
      if (page) page.problem(`No connection to the dashboard: ${error.message}. Trying again.`, "connection lost");
      else {
        byId("problem").hidden = false;
        byId("queues").classList.add("stale");
        say("problem", error.message);
      }
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]));
  }
}

byId("gate-form").onsubmit = (event) => {
  event.preventDefault();
  keepToken(byId("gate-token").value);
  location.reload();
};
addEventListener("hashchange", () => {
  takeToken();
  location.reload();
});
takeToken();
run();
