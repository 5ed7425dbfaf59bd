// All recorded values of a token, in the order in which its gradient was computed.

import { el } from "./dom.js";
import { number, unpack } from "./numbers.js";

const unpacked = new WeakMap();

function valueAt(column, position) {
  if (!unpacked.has(column)) unpacked.set(column, unpack(column.column));
  const value = unpacked.get(column)?.[position];
  return value === undefined || Number.isNaN(value) ? null : value;
}

export function turnAt(account, position) {
  const found = account.rollout.turns.findIndex((turn) => position < turn.end);
  return found < 0 ? null : found;
}

function versionAt(turn, position) {
  let behind = turn.response_start;
  for (const [version, tokens] of turn.version_spans) {
    behind += tokens;
    if (turn.response_start <= position && position < behind) return version;
  }
  return turn.weight_version;
}

function textOf(account, fact, position) {
  const at = position === null ? null : turnAt(account, position);
  const turn = at === null ? null : account.rollout.turns[at];
  if (turn === null) return fact.text;
  if (fact.title === "Turn") return `${at}, ${position >= turn.response_start ? "sampled" : "prompt: never trained on"}`;
  return fact.title === "Weight version" ? String(versionAt(turn, position)) : fact.text;
}

// Epochs are columns, so that their differences are side by side.
function tokenValues(account, fact, position) {
  const rows = fact.columns.map((name) => account.columns.filter((each) => each.id === name)).filter((found) => found.length);
  if (position === null || !rows.length) return null;
  return el("table", {}, el("tbody", {}, rows.map((columns) => {
    const values = columns.map((column) => valueAt(column, position));
    const [{ title, unit, missing, words }] = columns;
    const same = values.every((value) => value === null);
    return el("tr", {}, el("th", { scope: "row" }, title, unit && el("span", { class: "quiet" }, ` ${unit}`)),
      same ? el("td", { class: "quiet", colspan: String(columns.length) }, missing)
        : values.map((value, at) => el("td", { class: "number" }, columns.length > 1 && el("span", { class: "epoch" }, `epoch ${columns[at].epoch}`),
          value === null ? missing : words[number(value)] ?? number(value))));
  })));
}

export function panelOf(account, position) {
  const heading = position === null
    ? [el("h2", {}, "The whole trajectory"), el("p", { class: "quiet" }, "Choose a token to see the causes of its gradient.")]
    : [el("h2", {}, `Token ${position}`), el("p", { class: "chosen foreign" }, JSON.stringify(account.texts[position]),
      el("span", { class: "quiet" }, ` id ${account.ids[position]}`))];
  return el("div", { class: "panel" }, heading,
    el("dl", {}, account.facts.map((fact) => {
      const text = textOf(account, fact, position);
      const shownValues = tokenValues(account, fact, position);
      return (text || shownValues) && [el("dt", {}, fact.title), el("dd", {}, text && el("p", {}, text), shownValues)];
    })),
    el("p", { class: "quiet" }, "The optimizer scales gradients by their history, so a single token's change of the weights is not defined."));
}
