"""Rewards that compare the rollouts of a task: computed once, when all of its rollouts have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import virtual_time

from rllm.planning.scoring import Scorer, WeightedReward
from rllm.training.setup import GroupRunner
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.engine import SamplingParams
from rllm_core.contracts.environment import Outcome
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.reward import RewardPlugin, Rollout, Score
from rllm_core.contracts.stage import RolloutRequest
from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.data.types import Episode, Task, TerminationReason
from rllm_core.rollout.runner import RunnerSettings
from rllm_core.rollout.workflows import MultiTurnWorkflow

from .conftest import FunctionEnvironment

Run = Callable[..., list[Episode]]


def weigh(function: Callable[[Any], Any], name: str = "mine", weight: float = 1.0, **fields: Any) -> WeightedReward:
    fields = {"scope": "group", "blocking": False} | fields
    plugin = RewardPlugin(name=name, summary="For tests.", load=lambda: lambda params: function, **fields)
    registered = Registered(plugin=plugin, distribution="tests", version="0")
    return WeightedReward(chosen=PluginChoice(registered=registered, params=NoParams()), weight=weight)


def rank(rollouts: Sequence[Rollout]) -> list[float]:
    """Return the share of the rollouts that are shorter."""
    lengths = [len(each.response.content) for each in rollouts]
    return [sum(other < length for other in lengths) / len(lengths) for length in lengths]


@pytest.fixture
def run(engine: Any, context: Callable[..., WorkflowContext]) -> Run:
    """The episodes of tasks whose rollout number n takes n seconds and answers with n + 1 letters."""

    def run_tasks(
        *rewards: WeightedReward, tasks: int = 1, rollouts: int = 4, step: Any = None, gamma: float = 0.0, **limits: Any
    ) -> list[Episode]:
        def make_workflow(setup: Any, score: Any) -> MultiTurnWorkflow:
            index = int(setup.uid.rpartition(":")[2])

            async def end(action: str) -> Outcome:
                await asyncio.sleep(index)
                return Outcome(done=True, reward=0.5) if step is None else await step(setup, index)

            environment = FunctionEnvironment(step=end, reset=lambda task: "x" * (index + 1))
            fields = {"make_environment": lambda: environment, "score": score, "sampling": setup.sampling}
            return MultiTurnWorkflow(context(**fields), gamma=gamma)

        engine.answer = lambda prompt, sampling: "a" * prompt.count("x") + "$"
        settings = {"n_parallel_tasks": 2, "retry_limit": 2, "raise_on_error": False, "trajectory_timeout": None}
        order = RolloutRequest(
            tasks=[Task(id=f"t{number}", data={"answer": number}) for number in range(tasks)],
            rollouts=rollouts,
            sampling=SamplingParams(max_tokens=100, seed=0, task_batch=7),
            label="train",
        )
        runner = GroupRunner(make_workflow, RunnerSettings(**settings | limits), Scorer(rewards))
        return virtual_time.run(runner.run(order))

    return run_tasks


def rewards_of(episodes: Sequence[Episode]) -> list[float | None]:
    return [trajectory.reward for episode in episodes for trajectory in episode.trajectories]


def test_each_task_is_one_call(run: Run) -> None:
    """More rollouts than slots: a finished rollout that waits for others has no slot."""
    seen: list[Sequence[Rollout]] = []
    episodes = run(weigh(lambda rollouts: seen.append(rollouts) or rank(rollouts)), tasks=3)
    assert [episode.id for episode in episodes] == [f"t{task}:{index}" for task in range(3) for index in range(4)]
    assert rewards_of(episodes) == [0.5, 0.75, 1.0, 1.25] * 3
    assert sorted(tuple(each.data["answer"] for each in rollouts) for rollouts in seen) == [(n,) * 4 for n in range(3)]
    assert {each.task_batch for rollouts in seen for each in rollouts} == {7}
    assert [len(each.response_ids) for each in seen[0]] == [2, 3, 4, 5]


def test_sum_is_the_sum_of_both_scopes(run: Run) -> None:
    """A reward with scope `group` gives what it gives with scope `rollout`: rewards of steps, metrics and outcome."""

    def length(rollout: Rollout) -> Score:
        size = len(rollout.response.content)
        return Score(value=size / 4, correct=size > 2, components={"size": size}, metrics={"m": 1}, extracted=str(size))

    other = weigh(lambda rollout: 1.0, "other", -1.0, scope="rollout")
    for gamma in (0.0, 0.5):
        alone = run(weigh(length, weight=0.5, scope="rollout"), other, gamma=gamma)
        grouped = run(weigh(lambda rollouts: [*map(length, rollouts)], weight=0.5), other, gamma=gamma)
        assert [repr(each) for each in grouped] == [repr(each) for each in alone]


def test_failed_and_late_rollouts_leave_the_group(run: Run) -> None:
    async def fail(setup: Any, index: int) -> Outcome:
        if index == 0:
            raise ValueError("broken")
        if index == 1 and setup.number == 0:
            raise ValueError("broken once")
        if index == 3:
            await asyncio.sleep(100)
        return Outcome(done=True, reward=0.5)

    sizes: list[int] = []
    episodes = run(
        weigh(lambda rollouts: sizes.append(len(rollouts)) or rank(rollouts)), step=fail, trajectory_timeout=9.0
    )
    assert sizes == [2]
    assert [each.termination_reason for each in episodes] == [
        TerminationReason.ERROR,
        TerminationReason.ENV_DONE,
        TerminationReason.ENV_DONE,
        TerminationReason.TIMEOUT,
    ]
    assert rewards_of(episodes) == [0.5, 1.0, 0.0]


def test_waiting_is_not_the_rollouts_time(run: Run) -> None:
    async def slowly(rollouts: Sequence[Rollout]) -> list[float]:
        await asyncio.sleep(50)
        return rank(rollouts)

    assert rewards_of(run(weigh(slowly), trajectory_timeout=5.0)) == [0.5, 0.75, 1.0, 1.25]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda rollouts: 1 / 0, "ZeroDivisionError"),
        (lambda rollouts: [1.0], "[1.0] for 4 rollouts"),
        (lambda rollouts: 1.0, "1.0 for 4 rollouts"),
        (lambda rollouts: asyncio.sleep(3600), "not finished after 60 s"),
    ],
)
def test_failed_call_has_no_rewards(function: Any, why: str, run: Run) -> None:
    episodes = run(weigh(function), weigh(lambda rollout: 1.0, "other", scope="rollout"))
    assert rewards_of(episodes) == [None] * 4
    errors = [each.trajectories[0].info["reward_error"] for each in episodes]
    assert all(why in error for error in errors)


def test_one_missing_result_is_one_missing_reward(run: Run) -> None:
    results = [1.0, float("nan"), {"value": None, "applies": False}, None]
    episodes = run(weigh(lambda rollouts: results), weigh(lambda rollout: 0.25, "other", scope="rollout"))
    assert rewards_of(episodes) == [1.75, None, 0.75, None]


def test_reward_that_does_not_apply_is_not_summed(run: Run) -> None:
    skipped = Score(value=None, applies=False, metrics={"not_applicable": 1.0})
    (episode,) = run(weigh(lambda rollouts: [skipped]), weigh(lambda rollouts: [2.0], "other", 0.5), rollouts=1)
    assert rewards_of([episode]) == [1.5]
    assert episode.trajectories[0].info["reward_components"] == {"other": 1.0}
    assert episode.metrics == {"reward.other": 2.0, "reward.mine.not_applicable": 1.0}
    (episode,) = run(weigh(lambda rollouts: [skipped]), rollouts=1)
    assert rewards_of([episode]) == [None]
    assert "no reward applies: mine" in episode.trajectories[0].info["reward_error"]


def test_single_rollout_is_a_group(context: Callable[..., WorkflowContext], engine: Any) -> None:
    """For workflows without `add_score`, and for tools that score one rollout."""
    made = context(make_environment=FunctionEnvironment, score=Scorer([weigh(rank)]))
    episode = asyncio.run(MultiTurnWorkflow(made).run({}, "t:0"))
    assert rewards_of([episode]) == [1.0]
