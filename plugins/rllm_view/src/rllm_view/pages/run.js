// One run: its curves, its steps, and what it was started with.

import { toAttempts, toStep } from "./address.js";
import { chart } from "./chart.js";
import { el, put, table } from "./dom.js";
import { MISSING, number, percent } from "./numbers.js";
import { ask } from "./source.js";

const SHOWN = 50;
const HEADINGS = ["step", "reward", "solved", "played", "waited", "masked", "rejected", "waiting", "trained", "clipped tokens"];

function facts(run, overview) {
  const pairs = [
    ["folder", run.folder], ["estimator", run.estimator], ["loss", run.loss], ["backend", run.backend], ["model", run.model],
    ["record", run.content ? `${run.content}, ${run.recorded_steps} steps` : "none"],
  ];
  return el("dl", { class: "facts" }, pairs.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value ?? MISSING)]),
    Object.entries(overview.validation).map(([name, value]) => [el("dt", {}, name), el("dd", {}, number(value))]));
}

function stepsTable(id, steps, shown) {
  const rows = steps.slice().reverse().slice(0, shown).map((step) => [
    el("a", { class: "row", href: toStep(id, step.step) }, step.step),
    number(step.reward, 3), percent(step.solved), step.played, step.waited, step.masked, step.dropped, step.waiting, step.trained,
    percent(step.clipped),
  ]);
  return table(HEADINGS, rows.map((row) => row.map((cell) => (typeof cell === "number" ? String(cell) : cell))), HEADINGS.map((_, at) => at));
}

function given(overview) {
  return [
    el("details", {}, el("summary", {}, "Values that are not defaults"),
      table(["key", "value", "from"], overview.given.map((each) => [each.key, each.value, each.origin]))),
    el("details", {}, el("summary", {}, "Plugins"),
      table(["kind", "name", "distribution", "version"],
        overview.plugins.map((each) => [each.kind, each.name, each.distribution, each.version].map((text) => text ?? MISSING)))),
  ];
}

export async function runPage({ parts: [, id] }) {
  const head = el("div"), curves = el("div", { class: "charts" }), steps = el("div"), below = el("div");
  const open = (step) => { location.hash = toStep(id, step); };
  let shown = SHOWN, found = { steps: [] };

  const drawSteps = () => put(steps,
    found.steps.length ? stepsTable(id, found.steps, shown) : el("p", { class: "quiet" }, "No step is recorded."),
    found.steps.length > shown && el("button", { click: () => { shown += 10 * SHOWN; drawSteps(); } }, `${found.steps.length - shown} earlier steps`));

  const page = { title: "run", node: null };
  page.update = async () => {
    const [overview, drawn, of] = await Promise.all([ask(`runs/${id}`), ask(`runs/${id}/curves`), ask(`runs/${id}/steps`)]);
    const { run } = overview;
    page.title = run.name;
    put(head,
      el("h1", {}, run.name),
      el("p", { class: "lead" }, run.total_steps ? `${run.steps} of ${run.total_steps} steps` : `${run.steps} steps`,
        ` · reward ${number(run.reward, 3)} · solved ${percent(run.solved)}`),
      overview.problems.map((text) => el("p", { class: "problem", role: "alert" }, text)),
      of.indexed < of.recorded && el("p", { class: "quiet" }, `${of.indexed} of ${of.recorded} steps are read so far.`));
    const focused = curves.contains(document.activeElement) ? document.activeElement.closest("figure")?.dataset.panel : null;
    put(curves, drawn.panels.map((panel) => chart(panel, open)));
    if (focused) curves.querySelector(`[data-panel="${focused}"] [tabindex]`)?.focus({ preventScroll: true });
    found = of;
    const at = steps.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    drawSteps();
    if (at) [...steps.querySelectorAll("a")].find((link) => link.getAttribute("href") === at)?.focus({ preventScroll: true });
    if (!below.children.length) put(below, facts(run, overview), given(overview));
  };
  await page.update();
  page.node = el("section", {}, head, curves,
    el("h2", {}, "Steps"), el("p", {}, el("a", { href: toAttempts(id) }, "all trajectories, by filters")), steps,
    el("h2", {}, "What it runs"), below);
  page.keys = [
    ["t", "all trajectories", () => { location.hash = toAttempts(id); }],
    ["]", "newest step", () => found.steps.length && open(found.steps[found.steps.length - 1].step)],
    ["[", "first step", () => found.steps.length && open(found.steps[0].step)],
  ];
  return page;
}
