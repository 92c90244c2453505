// The picture: waiting tasks sink as they age, leave to the right when claimed, and fall at the deadline.
//
// It shows the queue a little more than one snapshot ago. So it knows of each mark when it came and when it went,
// and can move it smoothly between two snapshots.

import { colours, FONT, prepared } from "./canvas.js";
import { span } from "./format.js";

// What happens to the newest tasks; by value and by deadline, age does not decide it.
const TOP_OF_ORDER = { lifo: "↑ claimed first", adaptive: "↑ claimed first", fifo: "put here, claimed last" };
const LEFT = 66, RIGHT = 16, TOP = 30, ZONE = 62;
const MARK_HEIGHT = 6, LANE = 24;
const LEAVE_MS = 500, FALL_MS = 900, ENTER_MS = 250;
// A second is at least this share of the height: ages are drawn to a power if the max age is long.
const SECOND_SHARE = 0.04;
const NICE_SECONDS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800];
const MIN_GAP = 34;
const STILL = matchMedia("(prefers-reduced-motion: reduce)");

/** Return a number from 0 to 1 that looks random and depends on a key alone. */
function scattered(key, salt) {
  let hash = Math.imul(key ^ (salt * 0x9e3779b1), 0x85ebca6b) >>> 0;
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35) >>> 0;
  return ((hash ^ (hash >>> 16)) >>> 0) / 2 ** 32;
}

export class Stack {
  #canvas;
  #marks = new Map();
  #snapshot = null;
  #queue;
  #offsetMs = 0;
  #delayMs = 1300;

  constructor(canvas, queue, everySeconds) {
    this.#canvas = canvas;
    this.#queue = queue;
    this.#delayMs = everySeconds * 1000 + 300;
    const animate = () => {
      if (!STILL.matches) this.draw();
      requestAnimationFrame(animate);
    };
    requestAnimationFrame(animate);
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  /** Take the marks of a new snapshot: those that are missing went since the one before. */
  take(snapshot) {
    const before = this.#snapshot;
    const offsetMs = snapshot.at_ms - Date.now();
    // The clock of the picture follows the queue's without jumping.
    this.#offsetMs = before === null || Math.abs(offsetMs - this.#offsetMs) > 2000
      ? offsetMs : this.#offsetMs + 0.1 * (offsetMs - this.#offsetMs);
    if (before !== null && before.marks.one_in !== snapshot.marks.one_in) this.#marks.clear();
    const met = new Set();
    let same = 0, previous = null;
    for (const age of snapshot.marks.ages_ms) {
      const created = snapshot.at_ms - age;
      same = created === previous ? same + 1 : 0;
      previous = created;
      const key = `${created}/${same}`;
      met.add(key);
      const mark = this.#marks.get(key);
      if (mark === undefined) this.#marks.set(key, { created, seed: (created % 2 ** 31) + same, gone: null });
      else mark.gone = null;
    }
    const horizonMs = snapshot.horizon_seconds * 1000;
    const since = before?.at_ms ?? snapshot.at_ms;
    for (const [key, mark] of this.#marks) {
      if (mark.gone !== null || met.has(key)) continue;
      const between = since + scattered(mark.seed, 3) * (snapshot.at_ms - since);
      mark.gone = mark.created + horizonMs <= snapshot.at_ms ? Infinity : Math.max(between, mark.created + 1);
    }
    this.#snapshot = snapshot;
    if (STILL.matches) this.draw();
  }

  draw() {
    const snapshot = this.#snapshot;
    const { context, width, height } = prepared(this.#canvas);
    if (snapshot === null || width < 120) return;
    const line = height - ZONE;
    const horizonMs = snapshot.horizon_seconds * 1000;
    const power = Math.min(1, Math.log(SECOND_SHARE) / Math.log(1 / Math.max(2, snapshot.horizon_seconds)));
    const y = (ageMs) => TOP + (Math.max(0, ageMs) / horizonMs) ** power * (line - TOP);
    context.font = FONT;
    this.#frame(context, width, height, line, y);
    const now = STILL.matches ? snapshot.at_ms : Date.now() + this.#offsetMs - this.#delayMs;
    this.#drawMarks(context, { now, width, line, horizonMs, y });
    if (!snapshot.marks.ages_ms.length && !this.#marks.size) {
      context.fillStyle = colours().muted;
      context.textAlign = "center";
      context.fillText("nothing waits", (LEFT + width - RIGHT) / 2, (TOP + line) / 2);
    }
  }

  #frame(context, width, height, line, y) {
    const shown = colours();
    const horizon = this.#snapshot.horizon_seconds;
    context.fillStyle = shown.soft;
    if (this.#queue.has_deadline) {
      context.globalAlpha = 0.8;
      context.fillRect(LEFT, line, width - LEFT - RIGHT, height - line);
      context.globalAlpha = 1;
    }
    context.textBaseline = "middle";
    context.lineWidth = 1;
    let last = -Infinity;
    for (const seconds of [0, ...NICE_SECONDS.filter((tick) => tick < horizon)]) {
      const at = Math.round(y(seconds * 1000)) + 0.5;
      if (at - last < MIN_GAP || (seconds && line - at < MIN_GAP)) continue;
      last = at;
      context.strokeStyle = shown.soft;
      context.beginPath();
      context.moveTo(LEFT, at);
      context.lineTo(width - RIGHT, at);
      context.stroke();
      context.fillStyle = shown.muted;
      context.textAlign = "right";
      context.fillText(seconds ? span(seconds) : "new", LEFT - 10, at);
    }
    context.textAlign = "left";
    context.fillStyle = shown.muted;
    context.fillText(TOP_OF_ORDER[this.#queue.order] ?? "put here", LEFT, 12);
    if (!this.#queue.has_deadline) return;
    context.strokeStyle = shown["fate-shed"];
    context.lineWidth = 2;
    context.setLineDash([7, 5]);
    context.beginPath();
    context.moveTo(LEFT, line);
    context.lineTo(width - RIGHT, line);
    context.stroke();
    context.setLineDash([]);
    context.textAlign = "right";
    context.fillStyle = shown.ink;
    context.font = `600 ${FONT}`;
    context.fillText(span(horizon), LEFT - 10, line);
    context.font = FONT;
    context.fillStyle = shown.muted;
    context.fillText("deadline", LEFT - 10, line + 16);
  }

  #drawMarks(context, { now, width, line, horizonMs, y }) {
    const shown = colours();
    const lanes = Math.max(4, Math.floor((width - LEFT - RIGHT) / LANE));
    const lane = (width - LEFT - RIGHT) / lanes;
    for (const [key, mark] of this.#marks) {
      const age = now - mark.created;
      if (age < 0) continue;
      const fallen = age - horizonMs;
      const left = mark.gone === null ? -1 : now - mark.gone;
      if (left > LEAVE_MS || (fallen > FALL_MS && this.#queue.has_deadline) || (mark.gone !== null && STILL.matches)) {
        this.#marks.delete(key);
        continue;
      }
      const x = LEFT + Math.floor(scattered(mark.seed, 1) * lanes) * lane + 1.5;
      const mid = y(Math.min(age, horizonMs));
      context.globalAlpha = 0.85 * Math.min(1, age / ENTER_MS + 0.2);
      context.fillStyle = shown["fate-pending"];
      let moved = 0, dropped = 0;
      if (fallen > 0 && this.#queue.has_deadline) {
        const share = fallen / FALL_MS;
        dropped = share * share * (ZONE - 4);
        context.fillStyle = shown["fate-shed"];
        context.globalAlpha = 0.95 * (1 - share * share);
      } else if (left >= 0) {
        const share = left / LEAVE_MS;
        moved = share * share * 90;
        context.fillStyle = shown["fate-success"];
        context.globalAlpha = 1 - share;
      }
      context.beginPath();
      context.roundRect(x + moved, mid - MARK_HEIGHT / 2 + dropped, lane - 3, MARK_HEIGHT, 2.5);
      context.fill();
    }
    context.globalAlpha = 1;
  }
}
