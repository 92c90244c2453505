// The chart of rates: three lines over the last minutes.

import { colours, FONT, prepared, ticks } from "./canvas.js";
import { rate, span } from "./format.js";

const LINES = [["offered", "fate-pending"], ["shed", "fate-shed"], ["served", "fate-success"]];
const NAMES = { offered: "offered", served: "served", shed: "not served" };
const LONGEST_MS = 300_000;
const SHORTEST_MS = 30_000;
const LEFT = 44, RIGHT = 14, TOP = 10, BOTTOM = 22;

export class RatesChart {
  #canvas;
  #points = [];
  // Points further apart are not joined: nobody read the queue between them.
  #gapMs = Infinity;

  constructor(canvas) {
    this.#canvas = canvas;
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Begin with the points that the server has. */
  begin(points, gapMs) {
    this.#points = points;
    this.#gapMs = gapMs;
    this.draw();
  }

  add(point) {
    this.#points.push(point);
    while (point.at_ms - this.#points[0].at_ms > LONGEST_MS) this.#points.shift();
    this.draw();
    const said = LINES.map(([name]) => `${NAMES[name]} ${rate(point[name])}`).join(", ");
    this.#canvas.setAttribute("aria-label", `Tasks per second: ${said}`);
  }

  draw() {
    const { context, width, height } = prepared(this.#canvas);
    const points = this.#points;
    if (!points.length || width < 80) return;
    const shown = colours();
    const last = points.at(-1).at_ms;
    const lengthMs = Math.min(LONGEST_MS, Math.max(SHORTEST_MS, last - points[0].at_ms));
    const top = Math.max(1, ...points.flatMap((point) => LINES.map(([name]) => point[name] ?? 0))) * 1.08;
    const x = (at) => width - RIGHT - ((last - at) / lengthMs) * (width - LEFT - RIGHT);
    const y = (value) => height - BOTTOM - (value / top) * (height - TOP - BOTTOM);
    context.font = FONT;
    context.lineWidth = 1;
    context.textBaseline = "middle";
    for (const tick of ticks(top, 4)) {
      context.strokeStyle = tick ? shown.soft : shown.line;
      context.beginPath();
      context.moveTo(LEFT, Math.round(y(tick)) + 0.5);
      context.lineTo(width - RIGHT, Math.round(y(tick)) + 0.5);
      context.stroke();
      context.fillStyle = shown.muted;
      context.textAlign = "right";
      context.fillText(tick.toLocaleString("en-US"), LEFT - 8, y(tick));
    }
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    context.fillText(`${span(lengthMs / 1000)} ago`, LEFT, height - 5);
    context.textAlign = "right";
    context.fillText("now", width - RIGHT, height - 5);
    for (const [name, colour] of LINES) this.#line(context, points, name, shown[colour], x, y);
  }

  #line(context, points, name, colour, x, y) {
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 2.25;
    context.lineJoin = "round";
    context.beginPath();
    let drawing = false, before = null;
    for (const point of points) {
      if (point[name] === null) { drawing = false; continue; }
      if (drawing && point.at_ms - before <= this.#gapMs) context.lineTo(x(point.at_ms), y(point[name]));
      else context.moveTo(x(point.at_ms), y(point[name]));
      drawing = true;
      before = point.at_ms;
    }
    context.stroke();
    const last = points.at(-1);
    if (last[name] === null) return;
    context.beginPath();
    context.arc(x(last.at_ms), y(last[name]), 3.5, 0, 7);
    context.fill();
  }
}
