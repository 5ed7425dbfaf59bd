// A line chart. Curves differ by dashes and by color, and every value is readable with the keyboard.

import { el, say, svg } from "./dom.js";
import { count, number, percent } from "./numbers.js";
import { BOX, scales, smoothed, ticks } from "./scales.js";

const DASHES = ["", "7 4", "2 3", "9 3 2 3", "4 2", "1 4", "12 4", "6 2 2 2"];
const POINTS = 400;

// Reduces many points to the lowest and the highest of each pixel column, so that no peak is lost.
function thinned(curve) {
  const points = curve.steps.map((step, at) => [step, curve.values[at]]);
  if (points.length <= POINTS) return points;
  const size = Math.ceil((2 * points.length) / POINTS);
  const found = [];
  for (let at = 0; at < points.length; at += size) {
    const part = points.slice(at, at + size).filter((point) => point[1] !== null).sort((a, b) => a[1] - b[1]);
    if (part.length) found.push(...[part[0], part[part.length - 1]].sort((a, b) => a[0] - b[0]));
  }
  return found;
}

function pathOf(points, x, y) {
  let pen = "M";
  const words = [];
  for (const [step, value] of points) {
    if (value === null) {
      pen = "M";
    } else {
      words.push(`${pen}${x(step).toFixed(1)} ${y(value).toFixed(1)}`);
      pen = "L";
    }
  }
  return words.join("");
}

// The number of digits that distinguishes the ticks of an axis.
function digitsOf(values) {
  const largest = Math.max(...values.map(Math.abs)), size = values[1] - values[0];
  return size > 0 && largest > 0 ? Math.min(8, Math.max(3, Math.ceil(Math.log10(largest / size)) + 1)) : 3;
}

function drawn(curves, scale, format) {
  const { x, y } = scale;
  const digits = digitsOf(scale.ticks);
  const lines = scale.ticks.map((value) => [
    svg("line", { class: "grid", x1: BOX.left, x2: BOX.right, y1: y(value), y2: y(value) }),
    svg("text", { x: BOX.left - 6, y: y(value) + 4, "text-anchor": "end" }, format(value, digits)),
  ]);
  const below = ticks(scale.first, scale.last).filter(Number.isInteger)
    .map((step) => svg("text", { x: x(step), y: BOX.height - 6, "text-anchor": "middle" }, step));
  const paths = curves.map((curve, at) => [
    curve.raw && svg("path", { class: `curve raw c${at % 8}`, d: pathOf(thinned({ ...curve, values: curve.raw }), x, y) }),
    svg("path", { class: `curve c${at % 8}`, "stroke-dasharray": DASHES[at % 8], d: pathOf(thinned(curve), x, y) }),
    curve.steps.length < 30 && curve.steps.map((step, place) => curve.values[place] !== null
      && svg("circle", { class: `dot c${at % 8}`, r: 2.2, cx: x(step), cy: y(curve.values[place]) })),
  ]);
  return [lines, below, paths];
}

// The drawn values of a curve: smoothed values before raw values. A log axis has only values above 0.
function prepared(curve, { smooth, log }) {
  const raw = log ? curve.values.map((value) => (value > 0 ? value : null)) : curve.values;
  return smooth ? { ...curve, values: smoothed(raw, smooth), raw } : { ...curve, values: raw };
}

// `open(step)` is called when a step is chosen. `smooth`: weight of the earlier values, in [0, 1).
export function chart(panel, open, { smooth = 0, log = false } = {}) {
  const curves = panel.curves.filter((curve) => curve.steps.length).map((curve) => prepared(curve, { smooth, log }));
  const heading = el("h3", {}, panel.title);
  if (!curves.length) return el("figure", { class: "chart empty" }, heading, el("p", { class: "quiet" }, "nothing recorded"));
  const format = panel.share ? percent : (value, digits = 3) => number(value, digits);
  const scale = scales(curves, panel.share, log);
  const lost = log ? panel.curves.flatMap((curve) => curve.values).filter((value) => value !== null && value <= 0).length : 0;
  const steps = [...new Set(curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  const cursor = svg("line", { class: "cursor", y1: BOX.top, y2: BOX.bottom, visibility: "hidden" });
  const values = curves.map(() => el("output"));
  const where = el("output", { class: "where" });
  let at = steps.length - 1;
  const point = (place, visible) => {
    at = Math.max(0, Math.min(steps.length - 1, place));
    const step = steps[at];
    // If the pointer is at no step, each curve shows its last value.
    curves.forEach((curve, index) => {
      const place = visible ? curve.steps.lastIndexOf(step) : curve.steps.length - 1;
      const raw = curve.raw ? ` (raw ${format(curve.raw[place])})` : "";
      values[index].textContent = place < 0 ? "" : `${format(curve.values[place])}${raw}`;
    });
    where.textContent = step < 0 ? "before step 0" : `step ${step}`;
    cursor.setAttribute("x1", scale.x(step));
    cursor.setAttribute("x2", scale.x(step));
    cursor.setAttribute("visibility", visible ? "visible" : "hidden");
  };
  const picture = svg("svg", {
    viewBox: `0 0 ${BOX.width} ${BOX.height}`, tabindex: "0", role: "img",
    "aria-label": `${panel.title}: ${curves.map((curve) => curve.name).join(", ")}. Arrow keys read values, Enter opens the step.`,
    pointermove: (event) => {
      const box = picture.getBoundingClientRect();
      const pixel = ((event.clientX - box.left) * BOX.width) / box.width;
      point(steps.reduce((best, step, place) =>
        Math.abs(scale.x(step) - pixel) < Math.abs(scale.x(steps[best]) - pixel) ? place : best, 0), true);
    },
    pointerleave: () => point(steps.length - 1, false),
    click: () => steps[at] >= 0 && open(steps[at]),
    keydown: (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, Home: -steps.length, End: steps.length }[event.key];
      if (move) point(at + move, true);
      else if (event.key === "Enter" && steps[at] >= 0) open(steps[at]);
      else return;
      event.preventDefault();
      say(`${where.textContent}: ${curves.map((curve, index) => `${curve.name} ${values[index].textContent}`).join(", ")}`);
    },
  }, drawn(curves, scale, format), cursor);
  const legend = el("ul", { class: "legend" }, curves.map((curve, index) => el("li", {},
    svg("svg", { class: "sample", viewBox: "0 0 26 8", "aria-hidden": "true" },
      svg("path", { class: `curve c${index % 8}`, "stroke-dasharray": DASHES[index % 8], d: "M0 4L26 4" })),
    el("span", {}, curve.name), values[index])));
  point(steps.length - 1, false);
  return el("figure", { class: "chart", "data-panel": panel.id }, heading, where, picture, legend,
    lost > 0 && el("p", { class: "quiet" }, `${count(lost, "value", "values")} of 0 or less: not on a log axis.`));
}
