// A line chart. Curves differ by dashes as well as by colour, and every value can be read with the keyboard.

import { el, say, svg } from "./dom.js";
import { number, percent } from "./numbers.js";

const WIDTH = 440, HEIGHT = 190, LEFT = 52, RIGHT = 10, TOP = 8, BOTTOM = 22;
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "4 2", "1 4", "12 4", "6 2 2 2"];
const POINTS = 400;

function ticks(low, high) {
  const rough = (high - low) / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / size - 1e-9); at * size <= high + size * 1e-6; at += 1) found.push(at * size);
  return found;
}

// Of many points: of each column of the picture the lowest and the highest, so that no peak is lost.
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

function scales(curves, share) {
  const steps = curves.flatMap((curve) => curve.steps);
  const values = curves.flatMap((curve) => curve.values).filter((value) => value !== null);
  const first = steps.reduce((a, b) => Math.min(a, b), Infinity), last = steps.reduce((a, b) => Math.max(a, b), -Infinity);
  let low = share ? 0 : values.reduce((a, b) => Math.min(a, b), Infinity);
  let high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!values.length) [low, high] = [0, 1];
  if (low > 0 && low < 0.5 * high) low = 0;
  if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  const x = (step) => LEFT + ((WIDTH - LEFT - RIGHT) * (step - first)) / (last - first || 1);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * (value - low)) / (high - low);
  return { first, last, low, high, x, y };
}

function drawn(curves, scale, format) {
  const { x, y } = scale;
  const lines = ticks(scale.low, scale.high).map((value) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
    svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)),
  ]);
  const below = ticks(scale.first, scale.last).filter(Number.isInteger)
    .map((step) => svg("text", { x: x(step), y: HEIGHT - 6, "text-anchor": "middle" }, step));
  const paths = curves.map((curve, at) => [
    svg("path", { class: `curve c${at % 8}`, "stroke-dasharray": DASHES[at % 8], d: pathOf(thinned(curve), x, y) }),
    curve.steps.length < 30 && curve.steps.map((step, place) => curve.values[place] !== null
      && svg("circle", { class: `dot c${at % 8}`, r: 2.2, cx: x(step), cy: y(curve.values[place]) })),
  ]);
  return [lines, below, paths];
}

// `open(step)` is called when a step is chosen.
export function chart(panel, open) {
  const curves = panel.curves.filter((curve) => curve.steps.length);
  const heading = el("h3", {}, panel.title);
  if (!curves.length) return el("figure", { class: "chart empty" }, heading, el("p", { class: "quiet" }, "nothing recorded"));
  const format = panel.share ? percent : (value) => number(value, 3);
  const scale = scales(curves, panel.share);
  const steps = [...new Set(curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const values = curves.map(() => el("output"));
  const where = el("output", { class: "where" });
  let at = steps.length - 1;
  const point = (place, visible) => {
    at = Math.max(0, Math.min(steps.length - 1, place));
    const step = steps[at];
    const of = (curve) => curve.values[curve.steps.lastIndexOf(step)];
    // Where no step is pointed at, each curve says where it ended.
    curves.forEach((curve, index) => {
      values[index].textContent = !visible ? format(curve.values[curve.values.length - 1]) : curve.steps.includes(step) ? format(of(curve)) : "";
    });
    where.textContent = step < 0 ? "before step 0" : `step ${step}`;
    cursor.setAttribute("x1", scale.x(step));
    cursor.setAttribute("x2", scale.x(step));
    cursor.setAttribute("visibility", visible ? "visible" : "hidden");
  };
  const picture = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, tabindex: "0", role: "img",
    "aria-label": `${panel.title}: ${curves.map((curve) => curve.name).join(", ")}. Arrow keys read values, Enter opens the step.`,
    pointermove: (event) => {
      const box = picture.getBoundingClientRect();
      const pixel = ((event.clientX - box.left) * WIDTH) / box.width;
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
  return el("figure", { class: "chart", "data-panel": panel.id }, heading, where, picture, legend);
}
