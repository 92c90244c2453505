// How numbers, times and elements are written. Texts are set as text, never as HTML.

const UNITS = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];

// A space at which no line ends.
const JOINED = "\u00a0";

/** Return a duration in at most two units, which stay on one line. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0) return `−${span(-seconds)}`;
  for (const [size, unit, smallerSize, smaller] of UNITS) {
    if (seconds >= size) {
      const rest = Math.floor((seconds % size) / smallerSize);
      return `${Math.floor(seconds / size)}${JOINED}${unit}${rest ? `${JOINED}${rest}${JOINED}${smaller}` : ""}`;
    }
  }
  if (seconds >= 9.95 || Number.isInteger(seconds)) return `${Math.round(seconds)}${JOINED}s`;
  if (seconds >= 0.0995) return `${seconds.toFixed(1)}${JOINED}s`;
  return `${Math.round(seconds * 1000)}${JOINED}ms`;
}

export const count = (number) => number.toLocaleString("en-US");

/** Return a number with its noun, such as "1 task" and "2 tasks". */
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** Return a rate with as many digits as tell something. */
export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  if (perSecond >= 100) return count(Math.round(perSecond));
  return perSecond.toFixed(perSecond > 0 && perSecond < 1 ? 2 : 1);
}

/** Return a share in percent; what is little is not nothing, and what is nearly all is not all. */
export function percent(share) {
  if (share === null || share === undefined) return "–";
  if (share > 0 && share < 0.01) return "<1%";
  return share > 0.99 && share < 1 ? ">99%" : `${Math.round(share * 100)}%`;
}

/** Return the time of day, with the date if it is another day. */
export function instant(seconds) {
  const at = new Date(seconds * 1000);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString("en-CA")} ${time}`;
}

/** Return the time of day to the millisecond, with the date if it is another day. */
export const exactInstant = (seconds) => `${instant(seconds)}.${String(Math.floor((seconds % 1) * 1000)).padStart(3, "0")}`;

export const byId = (id) => document.getElementById(id);

/** Set the text of an element, if it changed. */
export function say(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

/** Make an element with children: texts and other elements. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children.filter((child) => child !== null));
  return element;
}

/**
 * Give an element new children. Those with the key of an old child, or without keys its place, become like the new
 * ones in place, so that focus, selection, a screen reader's place and a press that has not ended stay.
 */
export function fill(parent, ...fresh) {
  const keys = new Set(fresh.map(keyOf));
  for (const old of [...parent.childNodes]) if (keyOf(old) !== undefined && !keys.has(keyOf(old))) old.remove();
  const known = new Map([...parent.children].map((old) => [keyOf(old), old]));
  let at = parent.firstChild;
  for (const one of fresh) {
    const key = keyOf(one);
    const same = key === undefined ? at && keyOf(at) === undefined && at.nodeName === one.nodeName && at : known.get(key);
    if (same === at && at) at = at.nextSibling;
    else parent.insertBefore(same || one, at);
    if (same && same !== one) liken(same, one);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

const keyOf = (node) => node.dataset?.key;

function liken(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (name !== "style" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  old.style.cssText = fresh.style.cssText;
  old.onclick = fresh.onclick;
  fill(old, ...fresh.childNodes);
}

/** Show rows in a table, each with its key, or a text if there are none. */
export function rows(id, found, columns, none) {
  fill(byId(id), ...(found.length ? found : [row("none", make("td", { className: "none", colSpan: columns }, none))]));
}

/** Make a cell with the name of its column, which a narrow page shows instead of the heading. */
export function named(name, className, ...children) {
  const cell = make("td", { className }, ...children);
  cell.dataset.name = name;
  return cell;
}

/** Make a short text that is cut rather than broken; its title has it in full. */
export const short = (text) => make("span", { className: "short", title: text ?? "" }, text ?? "–");

/** Make a row of a table with the key by which the next snapshot finds it. */
export function row(key, ...cells) {
  const made = make("tr", {}, ...cells);
  made.dataset.key = key;
  return made;
}

/** Make a bar that is filled in part. */
export function track(share, fate) {
  const filled = make("span");
  filled.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  const bar = make("span", { className: "track" }, filled);
  bar.setAttribute("aria-hidden", "true");
  if (fate) bar.dataset.fate = fate;
  return bar;
}
