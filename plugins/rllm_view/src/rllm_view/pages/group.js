// The members of a group side by side.

import { toEpisode, toGroup, toStep } from "./address.js";
import { conversation } from "./conversation.js";
import { el } from "./dom.js";
import { MISSING, number } from "./numbers.js";
import { ask } from "./source.js";

function member(id, step, { row, turns }) {
  const facts = [["reward", number(row.reward_given, 3)], ["advantage", number(row.advantage, 3)],
    ["outcome", row.rule ? `${row.outcome} by ${row.rule}` : row.outcome], ["ended by", row.termination_reason ?? MISSING], ["tokens", String(row.sampled_tokens ?? MISSING)]];
  return el("article", { class: row.is_correct ? "member solved" : "member" },
    el("h2", {}, el("a", { class: "row", href: toEpisode(id, step, row.trajectory) }, row.trajectory)),
    el("p", {}, row.is_correct ? "✓ solved" : "not solved"),
    el("dl", { class: "facts" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    row.error && el("p", { class: "problem" }, row.error),
    conversation(turns));
}

export async function groupPage({ parts: [, id, , step, , name], query }) {
  const offset = query.offset ?? "0";
  const found = await ask(`runs/${id}/group`, { step, group: name, offset });
  const first = Number(offset), last = first + found.members.length;
  const go = (to) => () => { if (to >= 0 && to < found.total) location.hash = toGroup(id, step, name, to); };
  return {
    title: name,
    node: el("section", {}, el("h1", {}, name),
      el("p", { class: "around" }, el("a", { href: toStep(id, step) }, `step ${step}`),
        el("span", {}, `${found.total ? first + 1 : 0} to ${last} of ${found.total}`),
        first > 0 && el("a", { href: toGroup(id, step, name, Math.max(0, first - 8)) }, "← before"),
        last < found.total && el("a", { href: toGroup(id, step, name, last) }, "after →")),
      el("div", { class: "members" }, found.members.map((each) => member(id, step, each)))),
    keys: [["l", "members after", go(last)], ["h", "members before", go(first - 8)]],
  };
}
