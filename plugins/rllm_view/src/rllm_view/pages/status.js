// The status of a run, and times.

import { isCopy } from "./copy.js";
import { el } from "./dom.js";
import { MISSING } from "./numbers.js";

const MEANINGS = {
  running: "Its process runs.",
  finished: "It made all its steps.",
  stopped: "Its user stopped it.",
  failed: "An error ended it.",
  killed: "Its process ended without recording how. A copy of a running run's directory also shows this.",
};

export function statusOf({ status }) {
  if (status === null) return MISSING;
  return el("span", { class: `status ${status}`, title: MEANINGS[status] }, isCopy() && status === "running" ? "running when this copy was written" : status);
}

// A time in this browser's time zone: 2026-11-29 09:41
export function moment(text) {
  const at = new Date(text);
  const two = (number) => String(number).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}`;
}
