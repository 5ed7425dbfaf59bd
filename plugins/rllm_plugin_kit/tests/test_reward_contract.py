"""Rewards that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

import asyncio
import os
from typing import Any, ClassVar

import pytest

from rllm_core.contracts import NoParams, RewardPlugin, Rollout, Score
from rllm_plugin_kit import RewardContract


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


class Plain(Exact):
    def __call__(self, rollout: Rollout) -> Any:  # type: ignore[override]
        return float(rollout.response.content == rollout.data["answer"])


class InAMapping(Exact):
    def score(self, rollout: Rollout) -> Any:
        return {"value": float(rollout.response.content == rollout.data["answer"])}


class ReadsTheQuestion(Exact):
    def score(self, rollout: Rollout) -> Any:
        return float(len(rollout.data["question"]))


class ReadsANumber(Exact):
    def score(self, rollout: Rollout) -> Any:
        return float(int(rollout.response.content) == int(rollout.data["answer"]))


class Infinite(Exact):
    def score(self, rollout: Rollout) -> Any:
        return -float("inf") if rollout.response.finish_reason == "length" else 1.0


class NothingSaid(Exact):
    def score(self, rollout: Rollout) -> Any:
        return Score(value=None)


class AnotherField(Exact):
    def score(self, rollout: Rollout) -> Any:
        return {"value": 1.0, "reason": "it is right"}


class Backwards(Exact):
    def score(self, rollout: Rollout) -> Any:
        return 1.0 - super().score(rollout).value


class Counts(Exact):
    asked: ClassVar[list[int]] = []

    def score(self, rollout: Rollout) -> Any:
        self.asked.append(1)
        return float(len(self.asked))


class KeepsTheRollout(Exact):
    async def __call__(self, rollout: Rollout) -> Any:
        self.rollout = rollout
        await asyncio.sleep(0)
        return float(len(self.rollout.response.text))


class TakesTheAnswer(Exact):
    def score(self, rollout: Rollout) -> Any:
        return float(rollout.response.content == rollout.data.pop("answer"))  # type: ignore[attr-defined]


class SetsAVariable(Exact):
    def score(self, rollout: Rollout) -> Any:
        os.environ["MY_REWARD"] = "scored"
        return 1.0


def plugin(make: Any, needs: frozenset[str] = frozenset({"answer"})) -> RewardPlugin[Any]:
    return RewardPlugin(name="mine", summary="For tests.", params=NoParams, load=lambda: make, needs=needs)


@pytest.mark.parametrize("reward", [Exact, Plain, InAMapping])
def test_a_good_reward_has_no_complaints(reward: Any, complaints: Any) -> None:
    assert complaints(RewardContract, plugin(reward), right=("42",), wrong=("41", "")) == {}


def test_hook_example_keeps_the_contract(complaints: Any, example: Any) -> None:
    assert complaints(RewardContract, example("reward"), right=("It is 42.",), wrong=("7",)) == {}


@pytest.mark.parametrize(
    ("reward", "test", "said"),
    [
        (ReadsTheQuestion, "only_declared_needs_are_read", "'question'"),
        (ReadsANumber, "any_response_is_scored", "fails on the"),
        (Infinite, "any_response_is_scored", "gives value the"),
        (NothingSaid, "any_response_is_scored", "gives value the"),
        (AnotherField, "any_response_is_scored", "returns reason, which"),
        (Backwards, "right_responses_get_higher_rewards", "'42'"),
        (Counts, "same_rollout_gets_same_reward", "scores the same"),
        (KeepsTheRollout, "concurrent_scores_do_not_affect_each_other", "when others are"),
        (TakesTheAnswer, "it_does_not_change_the_rollout", "changes the rollout"),
        (SetsAVariable, "process_wide_state_is_unchanged", "leaves environment variables"),
    ],
)
def test_contract_reports_the_mistake(
    reward: Any, test: str, said: str, complaint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_REWARD", "before")
    assert said in complaint(RewardContract, plugin(reward), test, right=("42",), wrong=("41",))


def test_needs_missing_from_the_data_are_reported(complaint: Any) -> None:
    record = plugin(Exact, needs=frozenset({"answer", "tests"}))
    assert "needs tests of" in complaint(RewardContract, record, "data_contains_the_declared_needs")
