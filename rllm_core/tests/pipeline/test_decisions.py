"""Stages name the trajectories that a step is not trained on, with the rule and its numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rllm_core.algorithms.grouping import by_task_and_role
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode, Step, Task, TerminationReason, Trajectory

MakeStep = Callable[..., TrainStep]
REJECTING = {"rllm.rejection_sample.enable": True}


def trajectory(reward: float | None = 0.0, name: str = "agent", finish_reason: str = "stop") -> Trajectory:
    sampled = Step([1], [2, 3], [-1.0, -1.0], info={"finish_reason": finish_reason})
    return Trajectory(name, [sampled], reward)


def rollouts(task: str, *rewards: float | None) -> list[Episode]:
    return [
        Episode(
            id=f"{task}:{index}",
            trajectories=[trajectory(reward)],
            is_correct=reward == 1.0,
            termination_reason=TerminationReason.ENV_DONE,
        )
        for index, reward in enumerate(rewards)
    ]


def decided(step: TrainStep) -> dict[str, list[Trajectory]]:
    """By outcome and rule."""
    found: dict[str, list[Trajectory]] = {}
    for decision in step.decisions:
        found.setdefault(f"{decision.outcome} {decision.rule}", []).extend(decision.trajectories)
    return found


@pytest.fixture
def run_step(bench: Any, step: MakeStep) -> Callable[..., TrainStep]:
    """A step of these episodes, through all stages."""

    def run(episodes: list[Episode], settings: dict[str, Any] | None = None) -> TrainStep:
        made = bench(settings)
        made.runner.episodes = episodes
        done = step(tasks=[Task(id="t")])
        asyncio.run(made.pipeline.run(done))
        return done

    return run


def test_nothing_is_decided_where_everything_is_trained_on(run_step: Any) -> None:
    step = run_step(rollouts("t", 1.0, 0.0))
    assert (step.decisions, step.given_rewards) == ([], {})


def test_filtered_rollouts_are_masked_by_termination_reason(run_step: Any) -> None:
    episodes = rollouts("t", 1.0, 0.0, 0.0)
    episodes[0].termination_reason = TerminationReason.TIMEOUT
    (cut,) = episodes[1].trajectories = [trajectory(finish_reason="length")]
    step = run_step(episodes, {"rllm.compact_filtering.enable": True, "rllm.mask_truncated_samples": True})

    assert decided(step) == {
        "masked compact_filter/timeout": episodes[0].trajectories,
        "masked compact_filter/truncated": [cut],
    }
    assert step.decisions[1].numbers == {"response_tokens": 2.0}
    assert [decision.group for decision in step.decisions] == [None, None]


def test_trajectories_in_no_group_are_masked(run_step: Any, offer: Any) -> None:
    offer("grouping", "first", lambda episodes, params: by_task_and_role(episodes[:1], params))
    episodes = rollouts("t", 1.0, 0.0, 0.5)
    step = run_step(episodes, {"rllm.transform.grouping": "first"})

    rest = [each for episode in episodes[1:] for each in episode.trajectories]
    assert decided(step) == {"masked group/ungrouped": rest}


def test_trajectories_without_reward_leave_their_group(run_step: Any) -> None:
    episodes = rollouts("t", 1.0, None, 0.0)
    step = run_step(episodes, {"rllm.algorithm.on_missing_reward": "drop"})

    (decision,) = step.decisions
    assert decided(step) == {"dropped check_rewards/missing_reward": episodes[1].trajectories}
    assert decision.group is step.trajectory_groups[0]


def test_a_reward_that_a_stage_replaces_is_kept(run_step: Any) -> None:
    episodes = rollouts("t", 1.0, None, 0.0)
    step = run_step(episodes, {"rllm.algorithm.on_missing_reward": "zero"})

    missing = episodes[1].trajectories[0]
    assert (missing.reward, step.given_rewards) == (0.0, {id(missing): None})


def test_last_steps_reward_replaces_a_missing_reward(run_step: Any) -> None:
    episodes = rollouts("t", None, None)
    for reward, episode in enumerate(episodes):
        episode.trajectories[0].steps[-1].reward = float(reward)
    step = run_step(episodes)

    assert step.given_rewards == {id(episode.trajectories[0]): None for episode in episodes}
    assert [episode.trajectories[0].reward for episode in episodes] == [0.0, 1.0]


def test_groups_without_signal_are_dropped_with_their_numbers(run_step: Any) -> None:
    episodes = [*rollouts("a", 1.0, 1.0), *rollouts("b", 1.0, 0.0), *rollouts("c", 0.5)]
    step = run_step(episodes, REJECTING | {"rllm.rejection_sample.mode": "group"})

    assert decided(step) == {
        "dropped reject/all_solved": [each for episode in episodes[:2] for each in episode.trajectories],
        "dropped reject/too_few": episodes[4].trajectories,
    }
    solved = next(decision for decision in step.decisions if decision.rule == "reject/all_solved")
    assert solved.numbers == {"trajectories": 2.0, "solved": 2.0, "reward_min": 1.0, "reward_max": 1.0}
    assert solved.group is not None
    assert solved.group.group_id == "a:agent"


def test_groups_that_a_mode_keeps_wait(run_step: Any) -> None:
    episodes = rollouts("t", 1.0, 0.0)
    settings = REJECTING | {"rllm.rejection_sample.mode": "episode", "rllm.rejection_sample.min_partial_solve_tasks": 2}
    step = run_step(episodes, settings)

    assert decided(step) == {"waiting reject/waiting": [each for e in episodes for each in e.trajectories]}


def test_groups_waiting_for_a_batch_are_decided_once(bench: Any, step: MakeStep) -> None:
    """Group a waits for the second rollout batch, and is trained on in it."""
    dynamic = {"rllm.rejection_sample.mode": "dynamic", "rllm.rejection_sample.max_gen_batches": 2}
    made = bench(REJECTING | dynamic | {"data.train_batch_size": 2})
    batches = iter([rollouts("a", 1.0, 0.0) + rollouts("b", 1.0, 1.0), rollouts("c", 1.0, 0.0)])

    async def run(order: Any) -> list[Episode]:
        return next(batches)

    async def next_batch() -> TrainStep:
        await made.pipeline.generate(generated := step(tasks=[Task(id="c")]))
        return generated

    made.runner.run = run
    done = step(tasks=[Task(id="a"), Task(id="b")])
    asyncio.run(made.pipeline.run(done, next_batch))

    assert [group.group_id for group in done.trajectory_groups] == ["a:agent", "c:agent"]
    assert {decision.outcome for decision in done.decisions} == {"dropped"}
    assert [decision.group and decision.group.group_id for decision in done.decisions] == ["b:agent"]


def test_trajectories_without_sampled_tokens_are_dropped(run_step: Any) -> None:
    episodes = rollouts("t", 1.0, 0.0, 0.0)
    episodes[1].trajectories = [Trajectory("agent", [Step([1], [], [])], 0.0)]
    step = run_step(episodes)

    assert decided(step) == {"dropped build_batch/no_sampled_tokens": episodes[1].trajectories}
