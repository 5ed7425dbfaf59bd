// One step: the outcomes of its trajectories.

import { toExamples, toRollouts, toGroup, toStep } from "./address.js";
import { el, put, svg, table, withFocus } from "./dom.js";
import { count, MISSING, number, percent } from "./numbers.js";
import { Order, sorted } from "./sorting.js";
import { ask } from "./source.js";

const GROUP_COLUMNS = [["group", "group"], ["task_id", "task"], ["outcome", "outcome"], ["trajectories", "trajectories"], ["solved", "solved"],
  ["reward_mean", "mean reward"], ["reward_max", "rewards"]];

// Each row is the remaining number. The dashed part is the number that was removed.
function funnel(summary) {
  const all = summary.generated + summary.waited;
  const unmasked = all - summary.masked, kept = unmasked - summary.dropped - summary.waiting;
  const rows = [
    ["generated", all, summary.waited ? `${summary.waited} of them waited since an earlier step` : "in this step"],
    ["not masked", unmasked, `${summary.masked} masked`],
    ["not rejected", kept, [`${summary.dropped} rejected`, summary.waiting ? `, ${summary.waiting} wait for a later step` : ""].join("")],
    ["trained", summary.trained, `${summary.gradient_groups} of ${count(summary.trained_groups, "group has", "groups have")} a policy gradient`],
  ];
  return el("div", { class: "funnel" },
    rows.map(([name, value, why]) => el("div", { class: "stage" },
      el("span", { class: "name" }, name), el("strong", {}, value),
      svg("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { class: "rest", x: 0, y: 0, width: 100, height: 6 }),
        svg("rect", { class: "bar", x: 0, y: 0, width: all ? (100 * value) / all : 0, height: 6 })),
      el("span", { class: "quiet" }, why))),
    el("div", { class: "stage" }, el("span", { class: "name" }, "clipped"), el("strong", {}, percent(summary.clipped)),
      svg("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { class: "rest", x: 0, y: 0, width: 100, height: 6 }),
        svg("rect", { class: "bar", x: 0, y: 0, width: 100 * (summary.clipped ?? 0), height: 6 })),
      el("span", { class: "quiet" }, summary.clipped === null ? "not recorded" : "of the trained tokens have no policy gradient")));
}

function groups(id, step, { groups: all, previews }, order) {
  const prompts = all.map((each) => previews[each.first]?.prompt);
  const rows = sorted(all, (each) => each[order.name], order.descending).map((each) => [
    el("a", { class: "row", href: toGroup(id, step, each.group) }, each.group), each.task_id ?? MISSING,
    each.rule ? `${each.outcome} by ${each.rule}` : each.outcome, String(each.trajectories), String(each.solved),
    number(each.reward_mean, 3), each.reward_min === null ? MISSING : `${number(each.reward_min, 3)} to ${number(each.reward_max, 3)}`,
    el("span", { class: "foreign" }, previews[each.first]?.prompt),
  ]);
  return table("groups", [...order.headings(), prompts.some(Boolean) ? "prompt" : ""], rows, [3, 4, 5]);
}

export async function stepPage({ parts: [, id, , word], query }) {
  const found = await ask(`runs/${id}/step`, { step: word });
  const { step, summary } = found;
  const go = (other) => () => { if (other !== null) location.hash = toStep(id, other); };
  const link = (other, text) => (other === null ? el("span", { class: "quiet" }, text) : el("a", { href: toStep(id, other) }, text));
  const decisions = summary?.decisions ?? [];
  const place = el("div");
  const draw = () => withFocus(place, () => put(place, groups(id, step, found, order)));
  const order = new Order(query, GROUP_COLUMNS, draw);
  draw();
  return {
    title: `step ${step}`,
    node: el("section", {},
      el("h1", {}, `Step ${step}`),
      el("p", { class: "around" }, link(found.previous_step, "← step before"), link(found.next_step, "step after →"),
        el("a", { href: toExamples(id, { first: step, last: step }) }, "examples by reward")),
      summary === null
        ? el("p", { class: "problem" }, "The files of this step cannot be read. The page of the run shows the reason.")
        : [summary.reward !== null && el("p", { class: "lead" }, `reward ${number(summary.reward, 3)} · solved ${percent(summary.solved)}`), funnel(summary)],
      el("h2", {}, "Decisions"),
      table("decisions", ["outcome", "rule", "trajectories"], decisions.map((each) => [
        each.outcome, each.rule || MISSING,
        el("a", { href: toRollouts(id, { step, outcome: each.outcome, rule: each.rule }) }, count(each.trajectories, "trajectory", "trajectories"))])),
      el("h2", {}, `Groups (${found.groups.length})`), place),
    keys: [
      ["[", "step before", go(found.previous_step)],
      ["]", "step after", go(found.next_step)],
      ["x", "examples by reward", () => { location.hash = toExamples(id, { first: step, last: step }); }],
      ["t", "trajectories of the step", () => { location.hash = toRollouts(id, { step }); }],
    ],
  };
}
