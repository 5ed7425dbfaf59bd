// A page that contains its own answers: `rllm view --static`.

import { sorted } from "./sorting.js";

let data = null;

const place = () => document.getElementById("copy");

export const isCopy = () => place() !== null;

export const startOfCopy = () => place().dataset.start;

async function opened() {
  if (data === null) {
    const bytes = Uint8Array.from(atob(place().textContent.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    data = JSON.parse(await new Response(stream).text());
  }
  return data;
}

export async function answerFromCopy(path, query) {
  const found = lookUp(await opened(), path.split("/"), query);
  if (found === undefined) {
    const error = new Error("This copy does not contain that.");
    error.hint = "It contains the episodes of some steps. If you have the run directory, `rllm view RUN` shows all.";
    throw error;
  }
  return found;
}

function lookUp(whole, [kind, id, what], query) {
  if (kind === "about") return whole.about;
  if (kind === "runs" && id === undefined) return { runs: Object.values(whole.runs).map((run) => run.overview.run) };
  if (kind === "compare") return whole.compare ?? undefined;
  const run = whole.runs[id];
  if (run === undefined) return undefined;
  if (what === undefined) return run.overview;
  if (what === "state") return { version: "copy", name: run.overview.run.name };
  if (what === "rollouts") return rolloutsAmong(run, query);
  if (what === "group") return partOf(run.group[query.step]?.[query.group], Number(query.offset ?? 0));
  if (what === "episode") return run.episode[query.step]?.[query.uid];
  if (what === "examples") return run.examples[query.last ?? Object.keys(run.examples).at(-1)];
  if (what === "step") return run.step[query.step] && { ...run.step[query.step], previews: previewsOf(run) };
  return run[what];
}

const MEMBERS = 8;

function partOf(group, offset) {
  return group && { ...group, offset, members: group.members.slice(offset, offset + MEMBERS) };
}

const ORDER = {
  reward: "reward_given", tokens: "sampled_tokens", task: "task_id", solved: "is_correct",
};
const EQUAL = { task: "task_id", group: "group_id", outcome: "outcome", rule: "rule", termination_reason: "termination_reason", name: "name", step: "step" };

// The whole text of each trajectory that has text here, in lower case.
function textsOf(run) {
  const found = new Map();
  for (const [step, accounts] of Object.entries(run.episode)) {
    for (const [uid, { rollout }] of Object.entries(accounts)) {
      if (rollout.turns.every((turn) => turn.text === null)) continue;
      const said = rollout.turns.flatMap((turn) => [...(turn.observations ?? []).flatMap((each) => [each.text, each.data]), turn.text]);
      found.set(`${step} ${uid}`, [rollout.task, ...said].filter((text) => text !== null).join("\n").toLowerCase());
    }
  }
  return found;
}

const shortened = (text) => text?.trim().replace(/\s+/g, " ").slice(0, 120);

// The starts of texts, by uid, of trajectories that have text here.
function previewsOf(run) {
  const found = {};
  for (const { rollout: { uid, turns } } of Object.values(run.episode).flatMap(Object.values)) {
    const message = turns[0]?.observations?.at(-1);
    found[uid] = { prompt: shortened(message?.text), response: shortened(turns.at(-1)?.text) };
  }
  return found;
}

function rolloutsAmong(run, query) {
  const words = (query.text ?? "").toLowerCase(), phrase = (query.phrase ?? "").toLowerCase();
  const texts = textsOf(run);
  const rows = run.rows.filter((row) =>
    Object.entries(EQUAL).every(([name, of]) => !query[name] || String(row[of]) === query[name])
    && (!query.solved || String(row.is_correct) === query.solved)
    && (!query.reward_min || row.reward_given >= Number(query.reward_min))
    && (!query.reward_max || row.reward_given <= Number(query.reward_max))
    && (!words || [row.trajectory, row.task_id, row.error].some((text) => (text ?? "").toLowerCase().includes(words)))
    && (!phrase || texts.get(`${row.step} ${row.trajectory}`)?.includes(phrase)));
  const column = ORDER[query.order] ?? query.order ?? "step";
  const first = Number(query.offset ?? 0);
  return {
    indexed: run.steps.indexed, recorded: run.steps.recorded,
    texts: texts.size > 0,
    previews: previewsOf(run),
    search: phrase ? { copied: texts.size, earlier: null } : null,
    found: { total: rows.length, rows: sorted(rows, (row) => row[column], query.descending === "true").slice(first, first + Number(query.limit ?? 100)) },
  };
}
