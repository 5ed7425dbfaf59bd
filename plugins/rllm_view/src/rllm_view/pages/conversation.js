// The messages, turn by turn.

import { el } from "./dom.js";

const TURNS = 100;
const UNRECORDED = "text not recorded; a run with rllm.record=tokens records it";

function said(role, text, data) {
  return el("div", { class: role === "model" ? "said model" : "said" }, el("span", { class: "role" }, role),
    el("div", { class: "foreign" }, text?.trim() === "" ? el("em", { class: "quiet" }, text === "" ? "empty" : "only white space") : text ?? el("em", { class: "quiet" }, UNRECORDED)),
    data && el("details", {}, el("summary", {}, "whole message"), el("pre", { class: "foreign" }, data)));
}

function turnOf(turn, number) {
  const versions = turn.weight_version === undefined ? "" : ` · weights ${turn.weight_version}`;
  const reward = turn.reward === null || turn.reward === undefined ? "" : ` · reward ${turn.reward}`;
  return el("section", { class: "turn" },
    el("h2", {}, `turn ${number}${versions}${reward}${turn.finish_reason ? ` · ended by ${turn.finish_reason}` : ""}`),
    (turn.observations ?? []).map((message) => said(message.role, message.text, message.data)),
    said("model", turn.text));
}

// The first of thousands of turns, and the others on demand.
export function conversation(turns, from = 0) {
  const part = el("div", { class: "conversation" }, turns.slice(from, from + TURNS).map((turn, at) => turnOf(turn, from + at)));
  if (turns.length > from + TURNS) {
    const more = el("button", { click: () => more.replaceWith(conversation(turns, from + TURNS)) }, `${turns.length - from - TURNS} more turns`);
    part.append(more);
  }
  return part;
}
