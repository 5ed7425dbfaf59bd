"""The greedy rollout that some estimators compare with."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from expecting import expect_error

from rllm_core.contracts import AdvantageInput, Advantages, NoParams, RolloutRequest, TrainStep
from rllm_core.data.types import Episode, Task, Trajectory
from rllm_core.errors import ConfigError, RewardError

MakeStep = Callable[..., TrainStep]
CHOSEN = {"rllm.algorithm.adv_estimator": "against_greedy"}


@pytest.fixture(autouse=True)
def against_greedy(offer: Any) -> list[AdvantageInput]:
    """An estimator that compares with the greedy rollout, and what it was given."""
    seen: list[AdvantageInput] = []

    def estimate(inputs: AdvantageInput, params: NoParams) -> Advantages:
        seen.append(inputs)
        assert inputs.greedy_rewards is not None
        return Advantages(values=inputs.rewards - inputs.greedy_rewards)

    offer("estimator", "against_greedy", estimate, scope="trajectory", needs=frozenset({"greedy_rewards"}))
    return seen


class Greedy:
    """A runner stub: greedy rollouts with these rewards by role, one trajectory each."""

    def __init__(self, rewards: list[tuple[str, float | None]], error: str = "") -> None:
        self._rewards = rewards
        self._error = error
        self.orders: list[RolloutRequest] = []

    async def run(self, order: RolloutRequest) -> list[Episode]:
        self.orders.append(order)
        made = [Trajectory(role, reward=reward) for role, reward in self._rewards]
        return [Episode(id=f"{task.id}:0", trajectories=list(made), error=self._error) for task in order.tasks]


@pytest.fixture
def run_stage(bench: Any, step: MakeStep) -> Callable[..., tuple[Greedy, TrainStep]]:
    """The stage's effect on two rollouts of task t, each of two solvers and a judge."""

    def make(
        rewards: list[tuple[str, float | None]], settings: dict[str, Any] | None = None, error: str = ""
    ) -> tuple[Greedy, TrainStep]:
        made = bench(CHOSEN | (settings or {}))
        runner = Greedy(rewards, error)
        context = dataclasses.replace(made.context, runner=runner)
        chosen = next(stage for stage in made.plan.stages if stage.plugin.name == "greedy_baseline")
        episodes = [
            Episode(id=f"t:{index}", trajectories=[Trajectory(role, reward=1.0) for role in ("solver", "judge")])
            for index in range(2)
        ]
        training = step(tasks=[Task(id="t")], episodes=episodes)
        asyncio.run(chosen.plugin.load()(context, chosen.params)(training))
        return runner, training

    return make


def _read_greedy_rewards(step: TrainStep) -> list[float]:
    return [trajectory.info["greedy_reward"] for episode in step.episodes for trajectory in episode.trajectories]


def test_every_task_has_one_greedy_rollout(run_stage: Any) -> None:
    runner, done = run_stage([("solver", 0.25), ("judge", 0.5)])
    (order,) = runner.orders
    assert (order.rollouts, order.sampling.temperature, order.sampling.top_p, order.sampling.top_k) == (1, 0.0, 1.0, -1)
    assert order.label == "greedy"
    assert _read_greedy_rewards(done) == [0.25, 0.5, 0.25, 0.5]
    assert done.metrics["reward/greedy/mean"] == 0.375
    assert done.generated == []


@pytest.mark.parametrize(
    ("rewards", "settings", "expected"),
    [
        ([("solver", 0.0), ("solver", 1.0), ("judge", 0.5)], {}, [0.5, 0.5, 0.5, 0.5]),
        ([("solver", 1.0)], {"rllm.algorithm.on_missing_reward": "zero"}, [1.0, 0.0, 1.0, 0.0]),
    ],
)
def test_greedy_rewards_are_means_or_zero(run_stage: Any, rewards: Any, settings: Any, expected: list[float]) -> None:
    _, done = run_stage(rewards, settings)
    assert _read_greedy_rewards(done) == expected
    assert done.metrics["batch/missing_greedy_rewards"] == 2.0 * (0.0 in expected)


def test_no_greedy_rollouts_without_an_estimator_for_them(run_stage: Any) -> None:
    runner, done = run_stage([("solver", 0.0)], {"rllm.algorithm.adv_estimator": "grpo"})
    assert (runner.orders, done.metrics) == ([], {})


@pytest.mark.parametrize("reward", [None, float("nan")])
def test_greedy_rollout_without_reward_is_an_error(run_stage: Any, reward: float | None) -> None:
    with expect_error(RewardError, "missing-reward", "'t'", "'judge'", "rllm.algorithm.on_missing_reward=drop"):
        run_stage([("solver", 1.0), ("judge", reward)])


@pytest.mark.parametrize(
    ("rewards", "settings", "error"),
    [
        ([], {}, "RuntimeError: the environment has ended"),
        ([("solver", 1.0)], {"rllm.algorithm.on_missing_reward": "drop"}, ""),
    ],
)
def test_tasks_without_greedy_rewards_leave_the_step(run_stage: Any, rewards: Any, settings: Any, error: str) -> None:
    _, done = run_stage(rewards, settings, error=error)
    assert (done.episodes, done.skip_reason) == ([], "no_greedy_rewards")
    assert done.metrics["batch/missing_greedy_rewards"] == 2.0
    assert {(decision.outcome, decision.rule) for decision in done.decisions} == {
        ("masked", "greedy_baseline/no_greedy_reward")
    }


def test_estimators_get_the_greedy_rewards_of_their_trajectories(
    bench: Any, step: MakeStep, rollouts: Any, against_greedy: list[AdvantageInput]
) -> None:
    made = bench(CHOSEN)
    made.runner.episodes = rollouts([1.0, 0.25])
    training = step()
    asyncio.run(made.pipeline.run(training))
    assert [order.label for order in made.runner.orders] == ["train", "greedy"]
    # The runner gives the same rollouts to both orders, so the greedy reward is their mean.
    assert against_greedy[0].greedy_rewards is not None
    assert against_greedy[0].greedy_rewards.tolist() == [0.625, 0.625]
    assert training.batch is not None
    assert training.batch.advantages is not None
    assert sorted(set(training.batch.advantages.tolist())) == [-0.375, 0, 0.375]


TO_THE_END = {"stage": "late", "after": "update"}


@pytest.mark.parametrize(
    ("edit", "code", "values"),
    [
        ({"rllm.pipeline.remove": ["greedy_baseline"]}, "stage-input-missing", ["'against_greedy'", "greedy_rewards"]),
        (
            {"rllm.pipeline.replace": {"greedy_baseline": {"name": "late"}}, "rllm.pipeline.move": [TO_THE_END]},
            "stage-input-missing",
            ["'against_greedy'", "greedy_rewards"],
        ),
        ({"rllm.pipeline.move": [{"stage": "greedy_baseline", "after": "update"}]}, "stage-order", ["'batch'"]),
    ],
)
def test_greedy_stage_must_come_before_the_batch(plan: Any, add_stage: Any, edit: Any, code: str, values: Any) -> None:
    add_stage("late", lambda step: None, reads="episodes", writes="greedy_rewards")
    with expect_error(ConfigError, code, "greedy_baseline", *values):
        plan(CHOSEN | edit)
