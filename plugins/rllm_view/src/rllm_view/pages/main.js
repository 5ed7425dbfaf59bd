// Chooses the page for an address, and updates it while a run continues.

import { parsed, toRun } from "./address.js";
import { rolloutsPage } from "./rollouts.js";
import { comparePage } from "./compare.js";
import { isCopy, startOfCopy } from "./copy.js";
import { el, put } from "./dom.js";
import { episodePage } from "./episode.js";
import { examplesPage } from "./examples.js";
import { groupPage } from "./group.js";
import { help, listen, setKeys } from "./keys.js";
import { runPage } from "./run.js";
import { runsPage } from "./runs.js";
import { ask, takeKey } from "./source.js";
import { stepPage } from "./step.js";

const LOOK_EVERY = 1000;
let current = { page: null, parts: [] };
let version = null, runName = "run";

function pageFor({ parts: [first, id, what, step, kind] }) {
  if (first === undefined) return runsPage;
  if (first === "compare") return comparePage;
  if (first !== "run" || id === undefined) return null;
  if (what === undefined) return runPage;
  if (what === "rollouts") return rolloutsPage;
  if (what === "examples") return examplesPage;
  if (what !== "step" || step === undefined) return null;
  return { undefined: stepPage, group: groupPage, episode: episodePage }[kind] ?? null;
}

function bar(place) {
  const [first, id, , step] = place.parts;
  const crumbs = [el("a", { href: "#/" }, "runs")];
  if (first === "run") crumbs.push(el("a", { href: toRun(id) }, runName));
  if (step !== undefined) crumbs.push(el("a", { href: `${toRun(id)}/step/${step}` }, `step ${step}`));
  put(document.getElementById("bar"),
    el("nav", { "aria-label": "where this is" }, crumbs.flatMap((crumb, at) => (at ? [" / ", crumb] : [crumb]))),
    isCopy() && el("span", { class: "quiet" }, "a copy of the latest steps"),
    el("button", { class: "plain", click: () => help().showModal() }, "keys ", el("kbd", {}, "?")));
}

function problem(error) {
  return el("section", { class: "problem", role: "alert" },
    el("h1", {}, "This cannot be shown"), el("p", {}, error.message), el("p", {}, error.hint ?? ""));
}

async function show() {
  const place = parsed(location.hash);
  const turn = Symbol("turn");
  current.page?.leave?.();
  current = { page: null, parts: place.parts, turn };
  version = null;
  setKeys([]);
  let page;
  try {
    const made = pageFor(place);
    if (made === null) throw new Error("This page does not exist.");
    // Requested before the page, because data that is written while it is drawn is new.
    if (place.parts[0] === "run") ({ version, name: runName } = await ask(`runs/${place.parts[1]}/state`));
    page = await made(place);
  } catch (error) {
    page = { title: "problem", node: problem(error) };
  }
  // A different address was opened while this one was loading.
  if (current.turn !== turn) return page.leave?.();
  current.page = page;
  document.title = `${page.title} · rllm view`;
  bar(place);
  setKeys(page.keys ?? []);
  const main = document.getElementById("main");
  put(main, page.node);
  page.shown?.();
  if (place.token === null) window.scrollTo(0, 0);
  main.focus({ preventScroll: true });
}

async function look() {
  const { page, parts, turn } = current;
  if (page?.update && !document.hidden && !isCopy()) {
    try {
      const found = parts[0] === "run" ? await ask(`runs/${parts[1]}/state`) : { version: Symbol("always") };
      if (turn === current.turn) page.drawPending?.(found.pending);
      if (found.version !== version && turn === current.turn) {
        version = found.version;
        await page.update();
      }
      document.body.classList.remove("lost");
    } catch {
      document.body.classList.add("lost");
    }
  }
  setTimeout(look, parts[0] === "run" ? LOOK_EVERY : 4 * LOOK_EVERY);
}

takeKey();
if (isCopy() && location.hash === "") history.replaceState(null, "", startOfCopy());
listen();
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
window.addEventListener("hashchange", () => {
  takeKey();
  show();
});
show().then(look);
