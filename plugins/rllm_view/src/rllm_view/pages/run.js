// One run: its curves, its steps and its settings.

import { toExamples, toRollouts, toStep } from "./address.js";
import { isCopy } from "./copy.js";
import { el, put, table, withFocus } from "./dom.js";
import { Metrics } from "./metrics.js";
import { count, MISSING, number, percent } from "./numbers.js";
import { Pending } from "./pending.js";
import { Order, sorted } from "./sorting.js";
import { ask, stepsSoFar } from "./source.js";
import { moment, statusOf } from "./status.js";

const SHOWN = 50;
const STEP_COLUMNS = [["step", "step"], ["reward", "reward"], ["solved", "solved"], ["generated", "generated"], ["waited", "waited"],
  ["masked", "masked"], ["dropped", "rejected"], ["waiting", "waiting"], ["trained", "trained"], ["clipped", "clipped tokens"]];

function facts(run, overview) {
  const pairs = [
    ["directory", run.directory], ["started", run.started && moment(run.started)], ["ended", run.ended && moment(run.ended)],
    ["environment", run.environment], ["estimator", run.estimator], ["loss", run.loss], ["backend", run.backend], ["model", run.model],
    ["record", run.content ? `${run.content}, ${run.recorded_steps} steps` : "none"],
  ];
  return el("dl", { class: "facts" }, pairs.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value ?? MISSING)]),
    Object.entries(overview.validation).map(([name, value]) => [el("dt", {}, name), el("dd", {}, number(value))]));
}

function stepsTable(id, steps, shown, order) {
  const rows = sorted(steps, (step) => step[order.name], order.descending).slice(0, shown).map((step) => [
    el("a", { class: "row", href: toStep(id, step.step) }, step.step),
    number(step.reward, 3), percent(step.solved), step.generated, step.waited, step.masked, step.dropped, step.waiting, step.trained,
    percent(step.clipped),
  ]);
  const cells = rows.map((row) => row.map((cell) => (typeof cell === "number" ? String(cell) : cell)));
  return table("steps", order.headings(), cells, STEP_COLUMNS.map((_, at) => at));
}

function given(overview) {
  return [
    el("details", {}, el("summary", {}, "Values that are not defaults"),
      table("values", ["key", "value", "from"], overview.given.map((each) => [each.key, each.value, each.origin]))),
    el("details", {}, el("summary", {}, "Plugins"),
      table("plugins", ["kind", "name", "distribution", "version"],
        overview.plugins.map((each) => [each.kind, each.name, each.distribution, each.version].map((text) => text ?? MISSING)))),
  ];
}

function withoutSteps({ indexed, recorded }) {
  if (indexed < recorded && !isCopy()) return el("p", { class: "quiet", "aria-busy": "true" }, `Reading ${count(recorded, "step", "steps")} …`);
  return el("p", { class: "quiet" }, recorded ? "No recorded step can be read." : "No step is recorded.");
}

export async function runPage({ parts: [, id], query }) {
  const head = el("div"), steps = el("div"), values = el("div"), below = el("div");
  const open = (step) => { location.hash = toStep(id, step); };
  const pending = new Pending();
  let shown = SHOWN, found = { steps: [] };

  const drawSteps = () => put(steps,
    found.steps.length ? stepsTable(id, found.steps, shown, order) : withoutSteps(found),
    found.steps.length > shown && el("button", { click: () => { shown += 10 * SHOWN; drawSteps(); } }, `${found.steps.length - shown} more steps`));
  const order = new Order(query, STEP_COLUMNS, () => withFocus(steps, drawSteps), { name: "step", descending: true });
  const metrics = new Metrics(query, async (names) => [await ask(`runs/${id}/curves`, { metrics: names })], open);

  const page = { title: "run", node: null, drawPending: (waits) => pending.draw(waits) };
  page.update = async () => {
    const [overview, of] = await Promise.all([ask(`runs/${id}`), ask(`runs/${id}/steps`), metrics.update()]);
    const { run } = overview;
    page.title = run.name;
    put(head,
      el("h1", {}, run.name),
      el("p", { class: "lead" }, run.status && [statusOf(run), " · "], run.total_steps ? `${run.steps} of ${run.total_steps} steps` : count(run.steps, "step", "steps"),
        run.reward !== null && ` · reward ${number(run.reward, 3)}`, run.solved !== null && ` · solved ${percent(run.solved)}`),
      run.reason && el("p", { class: "problem", role: "alert" }, run.reason),
      overview.problems.map((text) => el("p", { class: "problem", role: "alert" }, text)),
      of.indexed < of.recorded && el("p", { class: "quiet" }, stepsSoFar(of)));
    found = of;
    withFocus(steps, drawSteps);
    put(values, facts(run, overview));
    if (!below.children.length) put(below, given(overview));
  };
  await page.update();
  page.node = el("section", {}, head, pending.node, metrics.node,
    el("h2", {}, "Steps"), el("p", { class: "around" }, el("a", { href: toExamples(id) }, "examples by reward"), el("a", { href: toRollouts(id) }, "all trajectories, by filters")), steps,
    el("h2", {}, "What it runs"), values, below);
  page.keys = [
    ["m", "choose metrics", () => metrics.find()],
    ["t", "all trajectories", () => { location.hash = toRollouts(id); }],
    ["x", "examples by reward", () => { location.hash = toExamples(id); }],
    ["]", "latest step", () => found.steps.length && open(found.steps[found.steps.length - 1].step)],
    ["[", "first step", () => found.steps.length && open(found.steps[0].step)],
  ];
  return page;
}
