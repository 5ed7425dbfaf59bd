"""A trajectory as lines of text."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rllm_core.notices import harmless
from rllm_view.reading.account import Account
from rllm_view.reading.panel import facts_of
from rllm_view.reading.rollout import Turn

OF_WHOLE = ("Reward", "Group", "Estimator", "Advantage", "Filter")
"""Facts that hold for all tokens."""
UNRECORDED = "(text not recorded; a run with rllm.record=tokens records it)"


def playback(account: Account) -> Iterator[str]:
    """Head, turns and how it ended."""
    attempt = account.attempt
    yield harmless(f"{attempt.uid}  {attempt.name}, task {attempt.task_id}, played in step {attempt.step}")
    if attempt.task is not None:
        yield f"task: {harmless(_as_text(attempt.task))}"
    for number, turn in enumerate(attempt.turns):
        yield ""
        yield from _turn(number, turn)
    yield ""
    solved = "solved" if attempt.is_correct else "not solved"
    tries = "" if attempt.tries == 1 else f", {attempt.tries} tries"
    yield f"ended: {harmless(attempt.ending)}, {solved}{tries}"
    if attempt.error:
        yield f"error: {harmless(attempt.error)}"
    yield from whole_facts(account)


def whole_facts(account: Account) -> Iterator[str]:
    """Reward, group, estimator, advantage and filter, a line each."""
    for fact in facts_of(account):
        if fact.title in OF_WHOLE and fact.text is not None:
            yield f"{fact.title.lower()}: {harmless(fact.text)}"


def _turn(number: int, turn: Turn) -> Iterator[str]:
    tokens = turn.end - turn.response_start
    reason = harmless(turn.finish_reason or "no reason")
    yield f"── turn {number}, weights {turn.weight_version}, {tokens} tokens, {reason} ──"
    for message in turn.heard or ():
        yield harmless(f"{message.role}: {message.text}")
    yield f"→ {UNRECORDED if turn.text is None else harmless(turn.text)}"


def _as_text(data: str) -> str:
    """JSON as it reads best: escapes of letters are the letters."""
    return json.dumps(json.loads(data), ensure_ascii=False)
