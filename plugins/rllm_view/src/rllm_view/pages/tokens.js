// The tokens of a trajectory. Only what is near the screen has elements: 32,000 tokens need no 32,000 of them.

import { el, shown } from "./dom.js";
import { count } from "./numbers.js";

const SIZE = 256;
const LINE = 26;
const LETTERS = 90;
const SIGNS = { "\n": "⏎\n", "\t": "⇥\t" };

// Parts of turns, each at most `SIZE` tokens long and preferably ended by a line's end.
function partsOf(account) {
  const parts = [];
  const { texts } = account;
  account.attempt.turns.forEach((turn, number) => {
    for (const [kind, start, end] of [["prompt", turn.prompt_start, turn.response_start], ["reply", turn.response_start, turn.end]]) {
      for (let at = start; at < end;) {
        let stop = Math.min(end, at + SIZE);
        for (let back = stop; stop < end && back > stop - 64; back -= 1) {
          if (texts[back - 1].endsWith("\n")) { stop = back; break; }
        }
        parts.push({ number, turn, kind, start: at, end: stop, first: at === start, whole: end - start });
        at = stop;
      }
    }
  });
  return parts;
}

function heightOf(part, texts) {
  let letters = 0;
  for (let at = part.start; at < part.end; at += 1) letters += texts[at].length;
  return (part.first ? 34 : 0) + LINE * Math.ceil(letters / LETTERS);
}

export class TokenView {
  // `pick(position)` is called when a token is chosen.
  constructor(account, pick) {
    this.texts = account.texts;
    this.parts = partsOf(account);
    this.classes = [];
    this.at = null;
    this.node = el("div", {
      class: "tokens", tabindex: "0", role: "group", "aria-label": "tokens; left and right arrows go from one to the next",
      click: (event) => {
        const found = event.target.closest("[data-t]");
        if (found) pick(Number(found.dataset.t));
      },
    });
    this.parts.forEach((part, index) => {
      part.node = el("div", { class: `part ${part.kind}`, "data-part": String(index) });
      part.node.style.minHeight = `${heightOf(part, this.texts)}px`;
      this.node.append(part.node);
    });
    this.watch = new IntersectionObserver((entries) => entries.forEach((entry) => {
      const part = this.parts[Number(entry.target.dataset.part)];
      if (entry.isIntersecting) this.fill(part);
      else this.empty(part);
    }), { rootMargin: "400px 0px" });
    this.parts.forEach((part) => this.watch.observe(part.node));
  }

  fill(part) {
    if (part.filled) return;
    part.filled = true;
    const words = [];
    for (let at = part.start; at < part.end; at += 1) {
      words.push(el("span", { class: this.classOf(at), "data-t": String(at) }, shown(this.texts[at]).replace(/[\n\t]/g, (sign) => SIGNS[sign]) || "∅"));
    }
    const versions = part.kind === "reply" ? ` · weights ${part.turn.weight_version} · ended by ${part.turn.finish_reason ?? "nothing"}` : "";
    part.node.replaceChildren(
      ...(part.first ? [el("h3", {}, `turn ${part.number} · ${part.kind} · ${count(part.whole, "token", "tokens")}${versions}`)] : []),
      el("div", { class: "run foreign" }, words));
    part.node.style.minHeight = "";
  }

  empty(part) {
    if (!part.filled) return;
    part.filled = false;
    part.node.style.minHeight = `${part.node.offsetHeight}px`;
    part.node.replaceChildren();
  }

  classOf(at) {
    return `${this.classes[at] ?? ""}${at === this.at ? " at" : ""}`.trim();
  }

  // Colours. `classes`: one for each token; empty for none.
  paint(classes) {
    this.classes = classes;
    for (const word of this.node.querySelectorAll("[data-t]")) word.className = this.classOf(Number(word.dataset.t));
  }

  // Marks a token and brings it to the screen.
  show(position) {
    const before = this.at;
    this.at = position;
    for (const at of [before, position]) {
      const word = at === null ? null : this.node.querySelector(`[data-t="${at}"]`);
      if (word) word.className = this.classOf(at);
    }
    const part = this.parts.find((each) => each.start <= position && position < each.end);
    if (!part) return;
    this.fill(part);
    this.node.querySelector(`[data-t="${position}"]`).scrollIntoView({ block: "center" });
  }

  leave() {
    this.watch.disconnect();
  }
}
