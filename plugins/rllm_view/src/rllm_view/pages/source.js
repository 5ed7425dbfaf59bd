// The source of answers: the server of this page, or the page itself.

import { answerFromCopy, isCopy } from "./copy.js";

const NAME = "rllm-view-key";

export class Refused extends Error {
  constructor(message, hint) {
    super(message);
    this.hint = hint;
  }
}

// The address that `rllm view` prints has the key after the #. The key is stored only for this server, and removed from the bar.
export function takeKey() {
  const found = /^#key=(.+)$/.exec(location.hash);
  if (!found) return;
  localStorage.setItem(NAME, found[1]);
  history.replaceState(null, "", "#/");
}

// How many steps the answers are about. A copy never has more.
export function stepsSoFar({ indexed, recorded }) {
  return isCopy() ? `This copy contains ${indexed} of ${recorded} steps.` : `${indexed} of ${recorded} steps are read so far.`;
}

export async function ask(path, query = {}, signal = undefined) {
  if (isCopy()) return answerFromCopy(path, query);
  const words = new URLSearchParams(query).toString();
  let response;
  try {
    response = await fetch(`api/${path}${words ? `?${words}` : ""}`, {
      headers: { "X-RLLM-View-Key": localStorage.getItem(NAME) ?? "" },
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer.", "Is `rllm view` still running? The page shows its last answer.");
  }
  if (response.status === 401) {
    throw new Refused("This page has no key, or the key of a different server.", "Open the address that `rllm view` printed.");
  }
  const answer = await response.json();
  if (!response.ok) throw new Refused(answer.message ?? answer.detail, answer.hint ?? "");
  return answer;
}
