// The chart of rates: three lines over the last hour; and the small chart of a backlog.

import { colours, FONT, prepared, ticks } from "./canvas.js";
import { count, make, rate, span } from "./format.js";

const LINES = [["offered", "fate-pending"], ["shed", "fate-shed"], ["served", "fate-success"]];
const NAMES = { offered: "offered", served: "served", shed: "not served" };
const LONGEST_MS = 3_600_000;
// Of points in the same step, the last is kept.
const STEP_MS = 1000;
const SHORTEST_MS = 30_000;
const LEFT = 44, RIGHT = 14, TOP = 10, BOTTOM = 22;

/** Return how far a chart reaches back, in whole minutes if it is a long time. */
const reachOf = (ms) => span(ms < 120_000 ? Math.round(ms / 1000) : 60 * Math.round(ms / 60_000));

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
    const last = this.#points.at(-1);
    if (last && Math.floor(last.at_ms / STEP_MS) === Math.floor(point.at_ms / STEP_MS)) this.#points.pop();
    this.#points.push(point);
    while (point.at_ms - this.#points[0].at_ms > LONGEST_MS) this.#points.shift();
    this.draw();
    const said = LINES.map(([name]) => `${NAMES[name]} ${rate(point[name])}`).join(", ");
    const reach = reachOf(point.at_ms - this.#points[0].at_ms);
    this.#canvas.setAttribute("aria-label", `Tasks per second, over the last ${reach}; now ${said}`);
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
    context.fillText(`${reachOf(lengthMs)} ago`, LEFT, height - 5);
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

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 120, HEIGHT = 22;

function drawn(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Make a small chart of how many tasks waited, a figure a minute; those that were not counted are left out. */
export function trendOf(figures) {
  const known = figures.filter((waiting) => waiting !== null);
  if (known.length < 2) return make("span", { className: "note" }, "–");
  const most = Math.max(1, ...known);
  const points = known.map((waiting, n) =>
    `${(2 + (n / (known.length - 1)) * (WIDTH - 4)).toFixed(1)},${(HEIGHT - 2 - (waiting / most) * (HEIGHT - 4)).toFixed(1)}`);
  const said = `waiting in the last hour: first ${count(known[0])}, at most ${count(most)}, now ${count(known.at(-1))}`;
  return drawn("svg", { class: "trend", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": said },
    drawn("title", {}, said), drawn("polyline", { points: points.join(" ") }));
}
