// The tokens of a trajectory. Only tokens near the screen have elements, so 32,000 tokens do not need 32,000 elements.

import { el, put, shown } from "./dom.js";
import { count } from "./numbers.js";
import { chunksOf } from "./pieces.js";

const SIGNS = { "\n": "⏎\n", "\t": "⇥\t" };

export class TokenView {
  // `pick(position)` is called when a token is chosen.
  constructor(account, pick) {
    this.texts = account.texts;
    this.chunks = chunksOf(account);
    this.classes = [];
    this.at = null;
    this.node = el("div", {
      class: "tokens", tabindex: "0", role: "group", "aria-label": "tokens; left and right arrows go from one to the next",
      click: (event) => {
        const found = event.target.closest("[data-t]");
        if (found) pick(Number(found.dataset.t));
      },
    });
    this.watch = new IntersectionObserver((entries) => entries.forEach((entry) => {
      const chunk = this.chunks[Number(entry.target.dataset.chunk)];
      if (entry.isIntersecting) this.fill(chunk);
      else this.empty(chunk);
    }), { rootMargin: "400px 0px" });
    this.chunks.forEach((chunk, index) => {
      chunk.node = el("div", { "data-chunk": String(index) });
      chunk.node.style.minHeight = `${chunk.height}px`;
      this.node.append(chunk.node);
      this.watch.observe(chunk.node);
    });
  }

  fill(chunk) {
    if (chunk.filled) return;
    chunk.filled = true;
    put(chunk.node, chunk.pieces.map((piece) => this.drawn(piece)));
    chunk.node.style.minHeight = "";
  }

  empty(chunk) {
    if (!chunk.filled) return;
    chunk.filled = false;
    chunk.node.style.minHeight = `${chunk.node.offsetHeight}px`;
    chunk.node.replaceChildren();
  }

  drawn({ number, turn, kind, start, end, first, whole }) {
    const words = [];
    for (let at = start; at < end; at += 1) {
      const text = shown(this.texts[at]).replace(/[\n\t]/g, (sign) => SIGNS[sign]);
      words.push(el("span", { class: this.classOf(at), "data-t": String(at) }, text || "∅"));
    }
    const how = kind === "completion" ? ` · weights ${turn.weight_version} · ended by ${turn.finish_reason ?? "nothing"}` : "";
    return el("div", { class: `part ${kind}` },
      first && el("h2", {}, `turn ${number} · ${kind} · ${count(whole, "token", "tokens")}${how}`),
      el("div", { class: "run foreign" }, words));
  }

  classOf(at) {
    return `${this.classes[at] ?? ""}${at === this.at ? " at" : ""}`.trim();
  }

  // Colors the tokens. `classes` has a class for each token. Empty: no colors.
  paint(classes) {
    this.classes = classes;
    for (const word of this.node.querySelectorAll("[data-t]")) word.className = this.classOf(Number(word.dataset.t));
  }

  // Marks a token and scrolls to it. null: marks none.
  show(position) {
    const before = this.at;
    this.at = position;
    const chunk = position !== null && this.chunks.find((each) => each.start <= position && position < each.end);
    if (chunk) this.fill(chunk);
    for (const at of [before, position]) {
      const word = at === null ? null : this.node.querySelector(`[data-t="${at}"]`);
      if (word) word.className = this.classOf(at);
    }
    this.node.querySelector(`[data-t="${position}"]`)?.scrollIntoView({ block: "center" });
  }

  leave() {
    this.watch.disconnect();
  }
}
