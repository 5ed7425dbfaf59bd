// Keys of a page: [key, meaning, what it does].

import { el } from "./dom.js";

let ofPage = [];

const EVERYWHERE = [
  ["j", "next row", () => moved(1)],
  ["k", "row before", () => moved(-1)],
  ["g", "all runs", () => { location.hash = "#/"; }],
  ["?", "these keys", () => help().showModal()],
];

export function setKeys(keys) {
  ofPage = keys;
}

function inForce() {
  const own = new Set(ofPage.map(([key]) => key));
  return [...ofPage, ...EVERYWHERE.filter(([key]) => !own.has(key))];
}

// Rows are links of class `row`. Enter follows the link in focus.
function moved(by) {
  const rows = [...document.querySelectorAll("main a.row")];
  const at = rows.indexOf(document.activeElement);
  rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + by))]?.focus();
}

export function help() {
  document.getElementById("keys")?.remove();
  const close = el("button", { click: () => dialog.close() }, "close (Esc)");
  const dialog = el("dialog", { id: "keys", "aria-label": "keys" }, el("h2", {}, "Keys of this page"),
    el("dl", {}, inForce().map(([key, meaning]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, meaning)])),
    el("p", { class: "quiet" }, "Tab moves between links, Enter follows a link."), close);
  document.body.append(dialog);
  return dialog;
}

export function listen() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
    const found = inForce().find(([key]) => key === event.key);
    if (!found) return;
    event.preventDefault();
    found[2]();
  });
}
