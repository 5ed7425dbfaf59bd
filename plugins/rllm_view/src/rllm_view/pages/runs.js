// All runs.

import { toCompare, toRun } from "./address.js";
import { el, put, table, withFocus } from "./dom.js";
import { MISSING, number, percent } from "./numbers.js";
import { Order, sorted } from "./sorting.js";
import { ask } from "./source.js";
import { moment, statusOf } from "./status.js";

const RUN_COLUMNS = [["name", "run"], ["status", "status"], ["started", "started"], ["environment", "environment"], ["steps", "steps"], ["reward", "reward"],
  ["solved", "solved"], ["validation", "val pass@1"], ["estimator", "estimator"], ["model", "model"]];

// A path that breaks only after a slash.
function directoryOf(directory) {
  return el("div", { class: "path" }, directory.split(/(?<=\/)/).map((part) => el("span", {}, part)));
}

export async function runsPage({ query }) {
  const chosen = new Set();
  const place = el("div");
  const compare = el("a", { class: "button", "aria-disabled": "true" });

  const toggled = (id, on) => {
    if (on) chosen.add(id);
    else chosen.delete(id);
    compare.textContent = chosen.size < 2 ? "choose two runs to compare" : `compare ${chosen.size} runs`;
    if (chosen.size < 2) compare.removeAttribute("href");
    else compare.setAttribute("href", toCompare([...chosen]));
    compare.setAttribute("aria-disabled", String(chosen.size < 2));
  };

  const row = (run) => {
    const box = el("input", { type: "checkbox", "aria-label": `choose ${run.name}`, change: (event) => toggled(run.id, event.target.checked) });
    box.checked = chosen.has(run.id);
    return [
      box, [el("a", { class: "row", href: toRun(run.id) }, run.name), directoryOf(run.directory)],
      statusOf(run), run.started ? moment(run.started) : MISSING, run.environment ?? MISSING,
      run.total_steps ? `${run.steps} / ${run.total_steps}` : String(run.steps),
      number(run.reward, 3), percent(run.solved), percent(run.validation),
      run.estimator ?? MISSING, run.model ?? MISSING,
    ];
  };

  let found = [], last = "";
  const draw = () => withFocus(place, () => put(place, found.length
    ? table("runs", ["chosen", ...order.headings()], sorted(found, (run) => run[order.name], order.descending).map(row), [5, 6, 7, 8])
    : el("p", {}, "No run is here yet. `rllm train guess rllm.record=tokens` starts one, and this page shows it.")));
  const order = new Order(query, RUN_COLUMNS, draw, { name: "started", descending: true });

  const update = async () => {
    const { runs } = await ask("runs");
    // A table that is drawn again loses the row in focus.
    if (JSON.stringify(runs) === last) return;
    last = JSON.stringify(runs);
    found = runs;
    draw();
  };
  toggled("", false);
  await update();
  return { title: "runs", node: el("section", {}, el("h1", {}, "Runs"), place, el("p", {}, compare)), update };
}
