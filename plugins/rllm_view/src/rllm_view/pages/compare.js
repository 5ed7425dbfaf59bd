// Runs side by side.

import { toRollouts, toRun } from "./address.js";
import { el, table } from "./dom.js";
import { Metrics } from "./metrics.js";
import { count, MISSING, number, percent } from "./numbers.js";
import { ask } from "./source.js";

export async function comparePage({ query }) {
  const found = await ask("compare", { runs: query.runs ?? "" });
  const metrics = new Metrics(query, (names) => Promise.all(found.runs.map((run) => ask(`runs/${run.id}/curves`, { metrics: names }))), () => {});
  await metrics.update();
  const names = found.runs.map((run, at) => el("a", { class: "row", href: toRun(run.id) }, `${at + 1}: ${run.name}`));
  const headings = found.runs.map((run, at) => `${at + 1}: ${run.name}`);
  const cell = (task, run, { solved, rollouts }) =>
    el("a", { href: toRollouts(run.id, { task }) }, `${percent(solved)} of ${rollouts}`);
  const values = [["status", (run) => run.status ?? MISSING], ["environment", (run) => run.environment ?? MISSING], ["steps", (run) => String(run.steps)], ["reward", (run) => number(run.reward, 3)],
    ["solved", (run) => percent(run.solved)], ["validation pass@1", (run) => percent(run.validation)],
    ["estimator", (run) => run.estimator ?? MISSING], ["loss", (run) => run.loss ?? MISSING]];
  return {
    title: "compare",
    node: el("section", {}, el("h1", {}, "Runs side by side"),
      el("ul", {}, names.map((name, at) => el("li", {}, name, " ", el("span", { class: "quiet" }, found.runs[at].directory)))),
      found.problems.map((texts, at) => texts.map((text) => el("p", { class: "problem", role: "alert" }, `${headings[at]}: ${text}`))),
      table("values", ["metric", ...headings], values.map(([name, value]) => [name, ...found.runs.map(value)])),
      metrics.node,
      el("h2", {}, "Settings that differ"),
      table("settings", ["key", ...headings], found.settings.map((each) => [each.key, ...each.values.map((value) => JSON.stringify(value))])),
      el("h2", {}, "Tasks, the most different first"),
      el("p", { class: "quiet" }, `Share of rollouts solved over ${count(found.compared_steps, "step", "steps")} that are readable in all runs, for tasks that all of them have.`),
      table("tasks", ["task", ...headings], found.tasks.map((row) => [row.task, ...row.runs.map((each, at) => cell(row.task, found.runs[at], each))]))),
  };
}
