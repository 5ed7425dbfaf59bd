"""A trajectory of 32,000 tokens."""

from __future__ import annotations

import pytest

from .addresses import of_episode
from .made_runs import PROMPT, RESPONSE, Made
from .visiting import MadeRun, Visit

TOKENS = 32_000
MOST_NODES = 5_000
UID = "0.0:task-0:0/0"
NODES = "document.querySelectorAll('*').length"


@pytest.mark.long
@pytest.mark.parametrize("response", [RESPONSE, 8_000 - PROMPT], ids=["many short turns", "few long turns"])
def test_long_trajectory_has_few_elements(visit: Visit, made: MadeRun, response: int) -> None:
    turns = TOKENS // (PROMPT + response)
    _, run = made(Made(steps=1, groups=1, members=1, turns=turns, response=response, epochs=1))
    page = visit.open(of_episode(run, 0, UID), UID)
    page.locator("[data-t]").first.wait_for()
    counts = [page.evaluate(NODES)]

    for token in (TOKENS // 2 + 1, turns * (PROMPT + response) - 1):
        visit.open(of_episode(run, 0, UID, token), UID)
        page.get_by_role("heading", name=f"Token {token}", exact=True).wait_for()
        page.locator(f'[data-t="{token}"]').wait_for()
        counts.append(page.evaluate(NODES))

    assert max(counts) < MOST_NODES
    page.keyboard.press("3")
    page.keyboard.press("ArrowLeft")
    page.get_by_role("heading", name=f"Token {token - 1}", exact=True).wait_for()
