"""Rewards that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest

from rllm_core.contracts import NoParams, RewardPlugin, Rollout, Score
from rllm_plugin_kit import RewardContract

from .conftest import vary


class Exact:
    """1 for the answer itself."""

    def __init__(self, params: NoParams) -> None:
        pass

    async def __call__(self, rollout: Rollout) -> Any:
        await asyncio.sleep(0)
        return self.score(rollout)

    def score(self, rollout: Rollout) -> Any:
        correct = rollout.response.content.strip() == str(rollout.data["answer"])
        return Score(value=float(correct), correct=correct, components={"exact": float(correct)})


class KeepsTheRollout(Exact):
    async def __call__(self, rollout: Rollout) -> Any:
        self.rollout = rollout
        await asyncio.sleep(0)
        return float(len(self.rollout.response.text))


def scoring(score: Callable[[Rollout], Any]) -> type[Exact]:
    """Return a reward with this score of a rollout."""
    return vary(Exact, score=lambda self, rollout: score(rollout))


def is_exact(rollout: Rollout) -> float:
    return float(rollout.response.content == rollout.data["answer"])


NUMBERS = itertools.count()


def plugin(make: Any, needs: frozenset[str] = frozenset({"answer"})) -> RewardPlugin[Any]:
    return RewardPlugin(name="mine", summary="For tests.", params=NoParams, load=lambda: make, needs=needs)


@pytest.mark.parametrize(
    "reward", [Exact, lambda params: is_exact, scoring(lambda rollout: {"value": is_exact(rollout)})]
)
def test_a_good_reward_has_no_complaints(reward: Any, complaints: Any) -> None:
    assert complaints(RewardContract, plugin(reward), right=("42",), wrong=("41", "")) == {}


@pytest.mark.parametrize(
    ("reward", "test", "said"),
    [
        (scoring(lambda rollout: float(len(rollout.data["question"]))), "only_declared_needs_are_read", "'question'"),
        (scoring(lambda rollout: float(rollout.response.content)), "any_response_is_scored", "fails on the"),
        (scoring(lambda rollout: -float("inf")), "any_response_is_scored", "gives value the"),
        (scoring(lambda rollout: Score(value=None)), "any_response_is_scored", "gives value the"),
        (
            scoring(lambda rollout: {"value": 1.0, "reason": "it is right"}),
            "any_response_is_scored",
            "returns reason, which",
        ),
        (scoring(lambda rollout: 1.0 - is_exact(rollout)), "right_responses_get_higher_rewards", "'42'"),
        (scoring(lambda rollout: float(next(NUMBERS))), "same_rollout_gets_same_reward", "scores the same"),
        (KeepsTheRollout, "concurrent_scores_do_not_affect_each_other", "when others are"),
        (
            scoring(lambda rollout: float(rollout.response.content == rollout.data.pop("answer"))),  # type: ignore[attr-defined]
            "it_does_not_change_the_rollout",
            "changes the rollout",
        ),
        (
            scoring(lambda rollout: os.environ.update(MY_REWARD="scored") or 1.0),  # type: ignore[func-returns-value]
            "process_wide_state_is_unchanged",
            "leaves environment variables",
        ),
    ],
)
def test_contract_reports_the_mistake(reward: Any, test: str, said: str, complaint: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("MY_REWARD", "before")
    assert said in complaint(RewardContract, plugin(reward), test, right=("42",), wrong=("41",))


def test_needs_missing_from_the_data_are_reported(complaint: Any) -> None:
    record = plugin(Exact, needs=frozenset({"answer", "tests"}))
    assert "needs tests of" in complaint(RewardContract, record, "data_contains_the_declared_needs")
