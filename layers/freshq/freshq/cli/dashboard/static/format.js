// How numbers, times and elements are written. Texts are set as text, never as HTML.

const UNITS = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];

/** Return a duration in at most two units. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0) return `−${span(-seconds)}`;
  for (const [size, unit, smallerSize, smaller] of UNITS) {
    if (seconds >= size) {
      const rest = Math.floor((seconds % size) / smallerSize);
      return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
    }
  }
  if (seconds >= 9.95 || Number.isInteger(seconds)) return `${Math.round(seconds)} s`;
  if (seconds >= 0.0995) return `${seconds.toFixed(1)} s`;
  return `${Math.round(seconds * 1000)} ms`;
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
  if (share > 0 && share < 0.01) return "<1 %";
  return share > 0.99 && share < 1 ? ">99 %" : `${Math.round(share * 100)} %`;
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

/** Replace the rows of a table, and keep the focus in a row that is still there. */
export function rows(id, found, columns, none) {
  const body = byId(id);
  const focused = body.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  body.replaceChildren(...found);
  if (!found.length) {
    const cell = make("td", { className: "none", colSpan: columns }, none);
    body.append(make("tr", {}, cell));
  }
  if (focused) [...body.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focused)?.focus();
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
