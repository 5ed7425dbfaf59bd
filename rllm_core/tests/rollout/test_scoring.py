"""Rewards chosen by name, summed by weight; what fails is missing, never 0."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import virtual_time
from places import without_place

from rllm.planning.scoring import DISAGREEMENT, Scorer, WeightedReward
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.environment import Outcome
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.reward import RewardPlugin, Rollout, Score
from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.data.codec import episode_from_json, episode_to_json
from rllm_core.data.messages import Response
from rllm_core.data.types import Episode, TerminationReason
from rllm_core.rollout.workflows import MultiTurnWorkflow

from .conftest import FunctionEnvironment

ROLLOUT = Rollout(
    data={"answer": "4"}, messages=[], response=Response(text="2 + 2 = 4", content="2 + 2 = 4"), response_tokens=9
)


def _weighted(function: Callable[[Rollout], Any], name: str = "mine", weight: float = 1.0, **fields: Any) -> Any:
    plugin = RewardPlugin(name=name, summary="For tests.", load=lambda: lambda params: function, **fields)
    registered = Registered(plugin=plugin, distribution="tests", version="0")
    return WeightedReward(chosen=PluginChoice(registered=registered, params=NoParams()), weight=weight)


def _score(*rewards: WeightedReward) -> Score:
    return asyncio.run(Scorer(rewards)(ROLLOUT))


async def _later(rollout: Rollout) -> float:
    await asyncio.sleep(0)
    return 0.25


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (lambda rollout: 1, 1.0),
        (lambda rollout: rollout.data["answer"] in rollout.response.content, 1.0),
        (lambda rollout: Score(value=0.5), 0.5),
        (lambda rollout: {"value": -2, "correct": False}, -2.0),
        (_later, 0.25),
    ],
)
def test_reward_returns_number_score_mapping_or_awaitable(function: Any, value: float) -> None:
    assert _score(_weighted(function)).value == value


def test_rewards_are_summed_by_weight_with_parts() -> None:
    one = _weighted(lambda rollout: Score(value=1.0, correct=True, metrics={"tries": 3}), "exact", 0.75)
    other = _weighted(lambda rollout: Score(value=-1.0, components={"tag": 1.0}), "format", 0.5)
    score = _score(one, other, other)
    assert score.value == 0.75 - 0.5 - 0.5
    assert score.correct is True
    assert score.components == {"exact": 0.75, "format": -0.5, "format#2": -0.5, "format.tag": 0.5, "format#2.tag": 0.5}
    assert score.metrics == {
        "reward.exact": 1.0,
        "reward.exact.tries": 3.0,
        "reward.format": -1.0,
        "reward.format.tag": 1.0,
        "reward.format#2": -1.0,
        "reward.format#2.tag": 1.0,
        "reward_disagreement": 0.0,
    }


@pytest.mark.parametrize(
    ("results", "disagreement"),
    [
        ([{"value": 1, "correct": True}, {"value": 0, "correct": False}], {"reward_disagreement": 1.0}),
        ([{"value": 0.5, "correct": True}, {"value": 0, "correct": None}], {"reward_disagreement": 0.0}),
        ([1.0, {"value": 0.25, "correct": False}], {"reward_disagreement": 1.0}),
        ([0.5, {"value": 0, "correct": False}], {"reward_disagreement": 0.0}),
        ([0.0, {"value": 1, "correct": True}], {"reward_disagreement": 0.0}),
        ([{"value": 1, "correct": False}, {"value": 1, "correct": False}], {"reward_disagreement": 0.0}),
        ([1.0, Score(value=None, correct=False, feedback="late")], {}),
        ([1.0], {}),
    ],
)
def test_disagreement_needs_right_and_wrong(results: list[Any], disagreement: dict[str, float]) -> None:
    score = _score(*(_weighted(lambda rollout, result=result: result) for result in results))
    assert {name: value for name, value in score.metrics.items() if name == DISAGREEMENT} == disagreement


def test_rollout_is_correct_if_all_rewards_agree() -> None:
    def says(correct: bool | None) -> WeightedReward:
        return _weighted(lambda rollout: Score(value=0.0, correct=correct))

    assert _score(says(None), says(None)).correct is None
    assert _score(says(True), says(None)).correct is True
    assert _score(says(True), says(False)).correct is False


def _exit(rollout: Rollout) -> float:
    raise SystemExit(3)


async def _cancelled(rollout: Rollout) -> float:
    raise asyncio.CancelledError


def _divide(rollout: Rollout) -> float:
    return 1 / 0


@pytest.mark.parametrize(
    ("function", "fields", "why"),
    [
        (lambda rollout: None, {}, "None"),
        (lambda rollout: float("nan"), {}, "returned nan. Return a finite number"),
        (lambda rollout: float("inf"), {}, "inf"),
        (lambda rollout: [1.0], {}, "[1.0]"),
        (lambda rollout: {"score": 1.0}, {}, "'score'"),
        (lambda rollout: "0.5", {}, "'0.5'"),
        (lambda rollout: Score(value=1.0, components={"x": None}), {}, "returned None as 'x'"),
        (lambda rollout: Score(value=1.0, metrics={"x": float("nan")}), {}, "returned nan as 'x'"),
        (lambda rollout: {"value": 1.0, "correct": "no"}, {}, "returned 'no' as 'correct'"),
        (lambda rollout: 1.0, {"needs": frozenset({"proof", "answer"})}, "'proof'"),
        (lambda rollout: time.sleep(3600), {"timeout": 0.01}, "0.01 s"),
        (lambda rollout: asyncio.sleep(3600), {"timeout": 0.01, "blocking": False}, "0.01 s"),
        # With the place in the reward's code.
        (_divide, {}, "ZeroDivisionError: division by zero (PLACE)"),
        (_exit, {"blocking": False}, "SystemExit: 3 (PLACE)"),
        (_exit, {}, "RuntimeError: SystemExit: 3 (PLACE)"),
        (_cancelled, {}, "CancelledError (PLACE)"),
    ],
)
def test_failing_reward_is_missing_with_its_error(function: Any, fields: dict[str, Any], why: str) -> None:
    score = _score(_weighted(function, **fields), _weighted(lambda rollout: 1.0, "other"))
    assert score.value is None
    assert score.feedback.startswith("reward mine: ")
    place = f"test_scoring.py, line {function.__code__.co_firstlineno + 1}"
    assert why.replace("(PLACE)", "") in score.feedback
    assert (place in score.feedback) == ("PLACE" in why)
    assert score.components == {"other": 1.0}


@pytest.fixture
def run_rollout(engine: Any, context: Callable[..., WorkflowContext]) -> Callable[..., Episode]:
    """Two turns, of which the environment pays 0.5 each, scored by this reward."""

    def run(function: Callable[[Rollout], Any]) -> Episode:
        outcomes = iter([Outcome(observation="more", reward=0.5), Outcome(done=True, reward=0.5)])
        world = FunctionEnvironment(step=lambda action: next(outcomes))
        world.final_state = lambda: {"moves": 2}
        made = context(make_environment=lambda: world, score=Scorer([_weighted(function)]))
        return asyncio.run(MultiTurnWorkflow(made).run({"answer": "4"}, "t:0"))

    return run


def test_rewards_receive_the_rollout_unchanged(run_rollout: Callable[..., Episode]) -> None:
    seen: list[Rollout] = []
    run_rollout(lambda rollout: seen.append(rollout) or 1.0)
    (rollout,) = seen
    assert rollout.data == {"answer": "4"}
    said = [(message["role"], message["content"]) for message in rollout.messages]
    assert said == [("user", "go"), ("assistant", "ok"), ("user", "more"), ("assistant", "ok")]
    assert (rollout.response.content, rollout.response.finish_reason) == ("ok", "stop")
    assert (rollout.response_tokens, rollout.state) == (6, {"moves": 2})


def test_rewards_add_to_the_last_steps_reward(run_rollout: Callable[..., Episode]) -> None:
    episode = run_rollout(
        lambda rollout: Score(value=2.0, correct=False, components={"form": 1.0}, metrics={"digits": 1})
    )
    (trajectory,) = episode.trajectories
    assert (trajectory.reward, [step.reward for step in trajectory.steps]) == (3.0, [0.5, 2.5])
    assert episode.is_correct is False
    assert trajectory.info["reward_components"] == {"mine": 2.0, "mine.form": 1.0}
    assert episode.metrics == {"reward.mine": 2.0, "reward.mine.form": 1.0, "reward.mine.digits": 1.0}
    assert "reward_error" not in trajectory.info


@pytest.mark.parametrize("said", [True, False])
def test_rewards_without_verdict_leave_that_of_environments(said: bool, context: Any) -> None:
    def result(correct: bool | None) -> bool:
        world = FunctionEnvironment(step=lambda action: Outcome(done=True, reward=0.5, correct=correct))
        made = context(make_environment=lambda: world, score=Scorer([_weighted(lambda rollout: -1.0)]))
        return asyncio.run(MultiTurnWorkflow(made).run({}, "t:0")).is_correct

    assert result(said) is said
    assert result(None) is False, "the reward as a whole is below 0"


def test_timeout_while_scoring_gives_no_reward(context: Callable[..., WorkflowContext]) -> None:
    world = FunctionEnvironment(step=lambda action: Outcome(done=True, reward=0.5))
    hangs = Scorer([_weighted(lambda rollout: asyncio.sleep(3600))])
    workflow = MultiTurnWorkflow(context(make_environment=lambda: world, score=hangs))

    async def run_rollout() -> None:
        async with asyncio.timeout(0.05):
            await workflow.run({}, "t:0")

    with pytest.raises(TimeoutError):
        virtual_time.run(run_rollout())
    assert workflow.episode is not None
    (trajectory,) = workflow.episode.trajectories
    assert (trajectory.reward, trajectory.steps[-1].reward) == (None, None)
    assert "time" in trajectory.info["reward_error"]


@pytest.mark.parametrize(
    ("correct", "reason"),
    [(True, TerminationReason.ENV_DONE), (False, TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED)],
)
def test_rewards_decide_whether_truncated_answers_count(
    correct: bool, reason: TerminationReason, engine: Any, run_rollout: Callable[..., Episode]
) -> None:
    engine.answer = lambda prompt, sampling: "4 and"
    assert run_rollout(lambda rollout: Score(value=1.0, correct=correct)).termination_reason is reason


def test_missing_reward_is_none_with_its_reason(run_rollout: Callable[..., Episode]) -> None:
    (trajectory,) = run_rollout(_divide).trajectories
    assert trajectory.reward is None
    assert without_place(trajectory.info["reward_error"]) == "reward mine: ZeroDivisionError: division by zero"


def test_extracted_answers_are_named_by_reward() -> None:
    def extracts(text: Any, name: str) -> WeightedReward:
        return _weighted(lambda rollout: {"value": 1.0, "extracted": text}, name)

    assert _score(extracts(None, "length")).extracted is None
    assert _score(extracts(None, "length"), extracts("4", "exact")).extracted == "4"
    assert _score(extracts(4, "exact"), extracts("B", "choice")).extracted == "exact: 4; choice: B"
    assert _score(extracts("4" * 5000, "exact")).extracted == "4" * 1000


def test_extracted_answers_are_in_the_episode(run_rollout: Callable[..., Episode]) -> None:
    for value in (1.0, None):
        episode = run_rollout(lambda rollout, value=value: Score(value=value, extracted="4", feedback="no proof"))
        (trajectory,) = episode_from_json(episode_to_json(episode)).trajectories
        assert trajectory.info["extracted"] == "4"
    (trajectory,) = run_rollout(lambda rollout: 1.0).trajectories
    assert "extracted" not in trajectory.info
