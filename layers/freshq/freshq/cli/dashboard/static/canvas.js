// Drawing on a canvas in its own pixels, in the colours of the page.

/** Return the canvas's context, its size in CSS pixels, and the page's colours. */
export function prepared(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const dots = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * dots) || canvas.height !== Math.round(height * dots)) {
    canvas.width = Math.round(width * dots);
    canvas.height = Math.round(height * dots);
  }
  const context = canvas.getContext("2d");
  context.setTransform(dots, 0, 0, dots, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

let known = null;
const names = ["ink", "muted", "line", "soft", "card", "fate-pending", "fate-taken", "fate-success", "fate-shed"];

/** Return the page's colours by name; they change with the light or dark mode. */
export function colours() {
  if (known === null) {
    const style = getComputedStyle(document.documentElement);
    known = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }
  return known;
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { known = null; });

export const FONT = '12px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

/** Return round numbers from 0 up to `top`, about `wanted` of them. */
export function ticks(top, wanted) {
  const rough = top / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, n) => n * step);
}
