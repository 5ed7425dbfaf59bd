// The colors of tokens. The line below a token shows the sign too: solid is up, dashed is down.

import { unpack } from "./numbers.js";

// [column, title, how its values become a level]
export const OVERLAYS = [
  ["push", "push on the gradient", "signed"],
  ["advantage", "advantage", "signed"],
  ["rollout_logprob", "log-prob when sampled", "size"],
  ["ratio", "ratio to the old policy", "ratio"],
  ["entropy", "entropy", "size"],
  ["clipped", "clipped by the loss", "yes"],
  ["weight", "weight in the loss", "size"],
];
const LEVELS = 4;

export function columnOf(account, name, epoch) {
  const found = account.columns.filter((each) => each.id === name);
  return found.find((each) => each.epoch === epoch) ?? found[0];
}

export function epochsOf(account) {
  return [...new Set(account.columns.map((each) => each.epoch).filter((epoch) => epoch !== null))].sort((a, b) => a - b);
}

// The largest value of nearly all tokens, so that an outlier does not bleach the others.
function scaleOf(values) {
  const sizes = values.filter((value) => !Number.isNaN(value)).map(Math.abs).sort();
  return sizes.length ? sizes[Math.min(sizes.length - 1, Math.floor(0.98 * sizes.length))] || sizes[sizes.length - 1] : 0;
}

// {missing} if no value is available, else {classes, scale}: a class for each token.
export function overlay(account, name, epoch) {
  const [, , kind] = OVERLAYS.find(([each]) => each === name);
  const column = columnOf(account, name, epoch);
  const raw = column ? unpack(column.column) : null;
  if (raw === null) return { missing: column?.missing ?? "not recorded" };
  const values = kind === "ratio" ? raw.map(Math.log) : raw;
  const scale = scaleOf(values);
  const classes = Array.from(values, (value) => {
    if (Number.isNaN(value)) return "";
    if (kind === "yes") return value ? "clip" : "seq0";
    const level = scale === 0 || value === 0 ? 0 : Math.max(1, Math.min(LEVELS, Math.ceil((LEVELS * Math.abs(value)) / scale)));
    if (level === 0) return "seq0";
    return kind === "size" ? `seq${level}` : `${value > 0 ? "pos" : "neg"}${level}`;
  });
  return { classes, scale: kind === "ratio" ? Math.exp(scale) : scale, unit: column.unit, kind };
}

// Positions by the size of their push, largest first.
export function strongestOf(account, epoch) {
  const column = columnOf(account, "push", epoch);
  const values = column ? unpack(column.column) : null;
  if (values === null) return [];
  const places = [...values.keys()].filter((at) => Math.abs(values[at]) > 0);
  return places.sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]));
}
