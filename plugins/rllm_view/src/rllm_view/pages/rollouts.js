// Trajectories by filters, over all steps of a run.

import { parsed, toRollouts, toEpisode } from "./address.js";
import { isCopy } from "./copy.js";
import { el, put, table, withFocus } from "./dom.js";
import { count, MISSING, number } from "./numbers.js";
import { Order } from "./sorting.js";
import { ask, stepsSoFar } from "./source.js";

const PAGE = 100;
const ROLLOUT_COLUMNS = ["step", "trajectory", "task", "outcome", "termination_reason", "solved", "reward", "advantage", "turns", "tokens"]
  .map((name) => [name, name === "termination_reason" ? "ended by" : name]);
const CHOICES = { outcome: ["", "trained", "masked", "dropped", "waiting"], solved: ["", "true", "false"] };
const FIELDS = [["text", "uid, task or error"], ["phrase", "text of rollouts"], ["step", "step"], ["task", "task"], ["group", "group"],
  ["rule", "rule"], ["reward_min", "reward from"], ["reward_max", "reward to"], ["outcome", "outcome"], ["solved", "solved"]];
const WIDE = ["text", "phrase"];

function field(name, title, value) {
  const input = CHOICES[name]
    ? el("select", { name }, CHOICES[name].map((each) => el("option", { value: each, selected: each === value }, each || "any")))
    : el("input", { name, value: value ?? "", size: WIDE.includes(name) ? 24 : 8, autocomplete: "off" });
  return el("label", {}, el("span", {}, title), input);
}

function rowOf(id, each, preview) {
  return [
    String(each.step), el("a", { class: "row", href: toEpisode(id, each.step, each.trajectory) }, each.trajectory),
    each.task_id ?? MISSING, each.rule ? `${each.outcome} by ${each.rule}` : each.outcome, each.termination_reason ?? MISSING,
    each.is_correct === null ? MISSING : each.is_correct ? "✓ yes" : "no", number(each.reward_given, 3),
    number(each.advantage, 3), String(each.turns ?? MISSING), String(each.sampled_tokens ?? MISSING),
    preview && el("span", { class: "foreign" }, preview.response),
  ];
}

// The bounds of a search in text, and a link to continue.
function searched(id, query, { search }) {
  if (!search) return null;
  const earlier = search.earlier !== null && el("a", { href: toRollouts(id, { ...query, until: search.earlier, offset: "" }) },
    `search step ${search.earlier} and earlier`);
  return el("p", { class: "around" }, el("span", {}, search.copied === undefined
    ? `Searched the text of ${count(search.steps, "step", "steps")}${query.until ? ` up to step ${query.until}` : ""}.`
    : `Searched the text of ${count(search.copied, "trajectory", "trajectories")} that this copy contains.`), earlier);
}

function howMany(answer, offset) {
  const { found: { total, rows }, indexed, recorded } = answer;
  if (total) return `${offset + 1} to ${offset + rows.length} of ${total}`;
  return indexed < recorded && !isCopy() ? "Reading …" : "No trajectory matches.";
}

export async function rolloutsPage({ parts: [, id], query: first }) {
  const place = el("div");
  const query = () => parsed(location.hash).query;
  const offset = () => Number(query().offset ?? 0);
  const open = (changed) => { location.hash = toRollouts(id, { ...query(), ...changed }); };
  const form = el("form", {
    class: "filters",
    submit: (event) => {
      event.preventDefault();
      const given = Object.fromEntries(new FormData(form));
      open({ ...given, offset: "", until: "" });
    },
    change: (event) => event.target.matches("select") && form.requestSubmit(),
  }, FIELDS.map(([name, title]) => field(name, title, first[name])), el("button", {}, "find"));
  const order = new Order(first, ROLLOUT_COLUMNS, () => update(), { name: "step", descending: true });
  let total = 0;

  const update = async () => {
    // A different page was opened in the meantime, so its query is for that page.
    if (!location.hash.startsWith(toRollouts(id))) return;
    const asked = location.hash, now = query(), from = offset();
    const answer = await ask(`runs/${id}/rollouts`, { ...now, ...order.query(), limit: String(PAGE), offset: String(from) });
    // The order changed while this was loading.
    if (location.hash !== asked) return;
    const { rows } = answer.found;
    total = answer.found.total;
    form.elements.phrase.parentElement.hidden = !answer.texts;
    withFocus(place, () => put(place,
      searched(id, now, answer),
      el("p", {}, howMany(answer, from),
        answer.indexed < answer.recorded && ` · ${stepsSoFar(answer)}`),
      table("trajectories", [...order.headings(), answer.texts ? "response" : ""], rows.map((each) => rowOf(id, each, answer.previews[each.trajectory])), [0, 6, 7, 8, 9]),
      el("p", { class: "around" },
        from > 0 && el("a", { href: toRollouts(id, { ...now, offset: Math.max(0, from - PAGE) || "" }) }, "← before"),
        from + rows.length < total && el("a", { href: toRollouts(id, { ...now, offset: from + PAGE }) }, "after →"))));
  };
  await update();
  return {
    title: "trajectories",
    node: el("section", {}, el("h1", {}, "Trajectories"), form, place),
    update,
    keys: [
      ["]", "rows after", () => offset() + PAGE < total && open({ offset: String(offset() + PAGE) })],
      ["[", "rows before", () => offset() > 0 && open({ offset: String(Math.max(0, offset() - PAGE) || "") })],
      ["/", "to the filter", () => form.elements.text.focus()],
    ],
  };
}
