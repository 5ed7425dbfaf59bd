// Examples of a run's rewards: the highest, the lowest, and those on which two rewards differ.

import { toEpisode, toExamples, toStep } from "./address.js";
import { isCopy } from "./copy.js";
import { el, table } from "./dom.js";
import { count, MISSING, number } from "./numbers.js";
import { ask } from "./source.js";

const UNRECORDED_RESPONSE = "not recorded: needs rllm.record=tokens";

const quoted = (text, otherwise = MISSING) => (text === null ? el("span", { class: "quiet" }, otherwise) : el("span", { class: "foreign" }, text === "" ? "(empty)" : text));

function examplesTable(id, name, examples) {
  const names = [...new Set(examples.flatMap((each) => Object.keys(each.rewards)))];
  const rows = examples.map((each) => [
    el("a", { class: "row", href: toEpisode(id, each.step, each.trajectory) }, each.trajectory), quoted(each.task ?? each.task_id),
    quoted(each.response, UNRECORDED_RESPONSE), quoted(each.extracted), String(each.rollouts),
    each.is_correct === null ? MISSING : each.is_correct ? "✓ yes" : "no", number(each.reward, 3), ...names.map((one) => number(each.rewards[one], 3)),
  ]);
  const headings = ["trajectory", "task", "response", "answer that was read", "rollouts", "solved", "reward", ...names];
  return table(name, headings, rows, [4, 6, ...names.map((_, at) => 7 + at)]);
}

function spanForm(id, { first, last }) {
  const field = (name, title, value) => el("label", {}, el("span", {}, title), el("input", { name, value, size: 8, autocomplete: "off" }));
  const form = el("form", {
    class: "filters",
    submit: (event) => {
      event.preventDefault();
      location.hash = toExamples(id, Object.fromEntries(new FormData(form)));
    },
  }, field("first", "from step", first), field("last", "to step", last), el("button", {}, "show"));
  return form;
}

export async function examplesPage({ parts: [, id], query }) {
  const found = await ask(`runs/${id}/examples`, query);
  const { first, last, examples } = found;
  const where = first === last ? `step ${last}` : `${count(examples.read_steps, "step", "steps")} up to step ${last}`;
  const go = (step) => () => { if (step !== null) location.hash = toExamples(id, { first: step, last: step }); };
  const link = (step, text) => (step === null ? el("span", { class: "quiet" }, text) : el("a", { href: toExamples(id, { first: step, last: step }) }, text));
  const part = (title, name, why, rows) => [el("h2", {}, title), rows.length ? [el("p", {}, why), examplesTable(id, name, rows)] : el("p", { class: "quiet" }, "None.")];
  return {
    title: "examples",
    node: el("section", {},
      el("h1", {}, "Examples by reward"),
      el("p", { class: "around" }, link(found.previous_step, "← step before"), el("a", { href: toStep(id, last) }, `step ${last}`), link(found.next_step, "step after →")),
      !isCopy() && spanForm(id, found),
      el("p", { class: "lead" }, `${count(examples.rollouts, "trajectory", "trajectories")} with a reward in ${where}. Equal responses to a task share a row.`),
      part("Highest rewards", "highest rewards", "The model learns to write these. A response here that is wrong shows a mistake of the reward.", examples.highest),
      part("Rewards that disagree", "rewards that disagree", "One reward accepts these responses more than a different one.", examples.different),
      part("Lowest rewards", "lowest rewards", "The model learns to avoid these. A right response here shows a mistake of the reward.", examples.lowest)),
    keys: [["[", "step before", go(found.previous_step)], ["]", "step after", go(found.next_step)]],
  };
}
