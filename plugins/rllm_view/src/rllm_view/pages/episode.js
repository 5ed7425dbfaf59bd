// One trajectory: its turns, its tokens colored by a value, and the recorded values of each.

import { toEpisode, toGroup, toStep } from "./address.js";
import { conversation } from "./conversation.js";
import { el, put, say } from "./dom.js";
import { MISSING, number } from "./numbers.js";
import { epochsOf, overlay, OVERLAYS, strongestOf } from "./overlays.js";
import { panelOf } from "./panel.js";
import { ask } from "./source.js";
import { TokenView } from "./tokens.js";

function legend(found, title) {
  if (found.missing) return [el("strong", {}, title), `: ${found.missing}`];
  const sample = (name, text) => [el("span", { class: `key ${name}` }, "token"), text];
  const words = {
    signed: [sample("pos4", `up to +${number(found.scale, 3)}: reinforced`), sample("neg4", `down to −${number(found.scale, 3)}: suppressed`)],
    ratio: [sample("pos4", `up to × ${number(found.scale, 3)}: likelier`), sample("neg4", `down to ÷ ${number(found.scale, 3)}: less likely`)],
    size: [sample("seq1", "small"), sample("seq4", `large: ${number(found.scale, 3)} ${found.unit}`)],
    yes: [sample("clip", "clipped: no policy gradient"), sample("seq0", "not clipped")],
  }[found.kind];
  return [el("strong", {}, title), words, sample("", "not available, or not trained on")];
}

function head(account, id, step) {
  const { rollout, decided } = account;
  const link = (uid, text) => (uid ? el("a", { href: toEpisode(id, step, uid) }, text) : el("span", { class: "quiet" }, text));
  const around = account.neighbors;
  return [
    el("h1", {}, rollout.uid),
    el("p", { class: "lead" }, rollout.is_correct ? "✓ solved" : "not solved", ` · reward ${number(rollout.reward_given, 3)}`,
      ` · ${decided.rule ? `${decided.outcome} by ${decided.rule}` : decided.outcome} · advantage ${number(decided.advantage, 3)} · ended: ${rollout.termination_reason}`,
      rollout.tries > 1 && ` · ${rollout.tries} tries`),
    rollout.error && el("p", { class: "problem" }, rollout.error),
    around && el("p", { class: "around" }, el("span", {}, `${around.position + 1} of ${around.total} in `, el("a", { href: toStep(id, step) }, `step ${step}`)),
      decided.group && el("a", { href: toGroup(id, step, decided.group) }, `group ${decided.group}`),
      link(around.previous, "← before"), link(around.next, "after →")),
    rollout.task && el("details", { class: "task" }, el("summary", {}, `task ${rollout.task_id ?? MISSING}`), el("pre", { class: "foreign" }, rollout.task)),
  ];
}

export async function episodePage({ parts: [, id, , step, , uid], token }) {
  const account = await ask(`runs/${id}/episode`, { step, uid });
  const hasTokens = account.texts !== null && account.rollout.length > 0;
  const epochs = epochsOf(account);
  const state = { at: null, name: OVERLAYS[0][0], epoch: epochs[0] ?? null };
  const side = el("aside", { "aria-label": "facts", tabindex: "0" }), key = el("p", { class: "key-line" });
  const view = hasTokens ? new TokenView(account, (at) => (at === state.at ? unpick() : pick(at))) : null;
  const said = conversation(account.rollout.turns);
  // Files of other programs have tokens without their text, so their conversation is first.
  const isReadable = hasTokens && account.texts.some((text, at) => text !== `⟨${account.ids[at]}⟩`);
  const body = el("div", { class: "body" }, isReadable || (hasTokens && token !== null) ? view.node : said);
  const buttons = OVERLAYS.map(([name, title], at) =>
    el("button", { class: "plain", "data-overlay": name, click: () => paint(name, state.epoch) }, el("kbd", {}, at + 1), ` ${title}`));
  const chosen = el("select", { "aria-label": "epoch", change: (event) => paint(state.name, Number(event.target.value)) },
    epochs.map((epoch) => el("option", { value: epoch }, `epoch ${epoch}`)));
  let strongest = null;

  function pick(at, from = "token") {
    state.at = Math.max(0, Math.min(account.rollout.length - 1, at));
    view.show(state.at);
    put(side, panelOf(account, state.at));
    side.className = "of-token";
    history.replaceState(null, "", toEpisode(id, step, uid, state.at));
    say(`${from} ${state.at}: ${account.texts[state.at]}`);
  }
  function unpick() {
    state.at = null;
    view.show(null);
    put(side, panelOf(account, null));
    side.className = "";
    history.replaceState(null, "", toEpisode(id, step, uid));
  }
  function paint(name, epoch) {
    Object.assign(state, { name, epoch });
    const found = overlay(account, name, epoch);
    view.paint(found.classes ?? []);
    put(key, legend(found, OVERLAYS.find(([each]) => each === name)[1]).flat(2).map((each) => (each instanceof Node ? each : ` ${each} `)));
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.overlay === name));
    if (epoch !== null) chosen.value = String(epoch);
    strongest = null;
  }
  // The n-th strongest token after the shown token, or the first if none is shown.
  function stronger(by) {
    strongest ??= strongestOf(account, state.epoch);
    if (!strongest.length) return say("push: not recorded");
    const at = strongest.indexOf(state.at);
    pick(strongest[Math.max(0, Math.min(strongest.length - 1, at < 0 ? 0 : at + by))], `strength ${Math.max(0, at + by) + 1}, token`);
  }
  function swapped() {
    if (hasTokens) put(body, body.firstChild === said ? view.node : said);
  }
  const go = (to) => () => { if (to) location.hash = toEpisode(id, step, to); };
  const { neighbors: around } = account;
  side.append(panelOf(account, null));
  if (hasTokens) paint(state.name, state.epoch);
  return {
    title: uid,
    node: el("section", { class: "episode" }, head(account, id, step),
      hasTokens && el("div", { class: "tools" }, buttons, epochs.length > 1 && chosen, el("button", { class: "plain", click: swapped }, el("kbd", {}, "c"), " tokens or conversation")),
      hasTokens && key,
      el("div", { class: "columns" }, body, side)),
    shown: () => hasTokens && token !== null && pick(token),
    leave: () => view?.leave(),
    keys: [
      ["j", "next trajectory", go(around?.next)], ["k", "trajectory before", go(around?.previous)],
      ["l", "next group", go(around?.next_group)], ["h", "group before", go(around?.previous_group)],
      ["]", "step after", () => { if (account.next_step !== null) location.hash = toStep(id, account.next_step); }],
      ["[", "step before", () => { if (account.previous_step !== null) location.hash = toStep(id, account.previous_step); }],
      ...(hasTokens ? [
        ["n", "next strongest token", () => stronger(1)], ["p", "stronger token", () => stronger(-1)],
        ["ArrowRight", "token after", () => pick((state.at ?? -1) + 1)], ["ArrowLeft", "token before", () => pick((state.at ?? 1) - 1)],
        ...OVERLAYS.map(([name, title], at) => [String(at + 1), `color by ${title}`, () => paint(name, state.epoch)]),
        ["0", "no colors", () => { view.paint([]); put(key, "no colors"); }],
        ["e", "next epoch", () => epochs.length && paint(state.name, epochs[(epochs.indexOf(state.epoch) + 1) % epochs.length])],
        ["Escape", "no token", unpick],
        ["c", "tokens or conversation", swapped],
      ] : []),
    ],
  };
}
