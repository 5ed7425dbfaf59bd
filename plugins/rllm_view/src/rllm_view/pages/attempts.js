// Trajectories by filters, over all steps of a run.

import { toAttempts, toEpisode } from "./address.js";
import { el, put, table } from "./dom.js";
import { MISSING, number } from "./numbers.js";
import { ask } from "./source.js";

const PAGE = 100;
const HEADINGS = ["step", "trajectory", "task", "fate", "ending", "solved", "reward", "advantage", "turns", "tokens"];
const CHOICES = {
  fate: ["", "trained", "masked", "dropped", "waiting"], solved: ["", "true", "false"],
  order: ["step", "reward", "advantage", "tokens", "turns", "task"], descending: ["false", "true"],
};
const FIELDS = [["text", "uid, task or error"], ["step", "step"], ["task", "task"], ["group", "group"], ["rule", "rule"],
  ["reward_min", "reward from"], ["reward_max", "reward to"], ["fate", "fate"], ["solved", "solved"], ["order", "order by"],
  ["descending", "descending"]];

function field(name, title, value) {
  const input = CHOICES[name]
    ? el("select", { name }, CHOICES[name].map((each) => el("option", { value: each, selected: each === value }, each || "any")))
    : el("input", { name, value: value ?? "", size: name === "text" ? 24 : 8, autocomplete: "off" });
  return el("label", {}, el("span", {}, title), input);
}

function rowOf(id, each) {
  return [
    String(each.step), el("a", { class: "row", href: toEpisode(id, each.step, each.trajectory) }, each.trajectory),
    each.task_id ?? MISSING, each.rule ? `${each.fate} by ${each.rule}` : each.fate, each.ending ?? MISSING,
    each.is_correct === null ? MISSING : each.is_correct ? "✓ yes" : "no", number(each.reward_given, 3),
    number(each.advantage, 3), String(each.turns ?? MISSING), String(each.sampled_tokens ?? MISSING),
  ];
}

export async function attemptsPage({ parts: [, id], query }) {
  const place = el("div");
  const offset = Number(query.offset ?? 0);
  const open = (changed) => { location.hash = toAttempts(id, { ...query, ...changed }); };
  const form = el("form", {
    class: "filters",
    submit: (event) => {
      event.preventDefault();
      const given = Object.fromEntries(new FormData(form));
      open({ ...given, offset: "" });
    },
    change: (event) => event.target.matches("select") && form.requestSubmit(),
  }, FIELDS.map(([name, title]) => field(name, title, query[name])), el("button", {}, "find"));
  let total = 0;

  const update = async () => {
    const answer = await ask(`runs/${id}/attempts`, { ...query, limit: String(PAGE), offset: String(offset) });
    const { rows } = answer.found;
    total = answer.found.total;
    const focus = place.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    put(place,
      el("p", {}, total ? `${offset + 1} to ${offset + rows.length} of ${total}` : "No trajectory is like that.",
        answer.indexed < answer.recorded && ` · ${answer.indexed} of ${answer.recorded} steps are read so far`),
      table(HEADINGS, rows.map((each) => rowOf(id, each)), [0, 6, 7, 8, 9]),
      el("p", { class: "around" },
        offset > 0 && el("a", { href: toAttempts(id, { ...query, offset: Math.max(0, offset - PAGE) || "" }) }, "← before"),
        offset + rows.length < total && el("a", { href: toAttempts(id, { ...query, offset: offset + PAGE }) }, "after →")));
    if (focus) [...place.querySelectorAll("a")].find((link) => link.getAttribute("href") === focus)?.focus({ preventScroll: true });
  };
  await update();
  return {
    title: "trajectories",
    node: el("section", {}, el("h1", {}, "Trajectories"), form, place),
    update,
    keys: [
      ["]", "rows after", () => offset + PAGE < total && open({ offset: String(offset + PAGE) })],
      ["[", "rows before", () => offset > 0 && open({ offset: String(Math.max(0, offset - PAGE) || "") })],
      ["/", "to the filter", () => form.elements.text.focus()],
    ],
  };
}
