"""Metrics of a step on examples small enough to count by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_episodes import make_episode

from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Episode, Step, TerminationReason, Trajectory, TrajectoryGroup
from rllm_core.data.version_spans import VersionSpan
from rllm_core.pipeline.metrics import (
    advantage_metrics,
    episode_metrics,
    find_reward,
    reward_metrics,
    staleness_metrics,
    throughput_metrics,
)


def test_solve_rates_count_rollouts_and_tasks() -> None:
    solved = {"all": (True, True), "none": (False, False), "some": (True, False), "also none": (False,)}
    episodes = [
        make_episode(task, i, correct=correct) for task, seen in solved.items() for i, correct in enumerate(seen)
    ]
    metrics = episode_metrics(episodes)
    assert metrics["batch/solved"] == pytest.approx(3 / 7)
    assert [metrics[f"batch/solve_{which}"] for which in ("all", "none", "partial")] == [0.25, 0.5, 0.25]
    assert metrics["batch/episodes"] == 7


def test_same_task_in_two_batches_counts_twice() -> None:
    first, second = ([make_episode("t", index, correct=correct) for index in range(2)] for correct in (True, False))
    metrics = episode_metrics(first, second)
    assert (metrics["batch/solve_all"], metrics["batch/solve_none"], metrics["batch/solve_partial"]) == (0.5, 0.5, 0.0)
    assert (metrics["batch/episodes"], metrics["batch/solved"]) == (4, 0.5)


def test_every_termination_reason_is_a_share_of_rollouts() -> None:
    episodes = [make_episode("t", index, reason=TerminationReason.TIMEOUT) for index in range(3)]
    episodes.append(make_episode("t", 3, reason=TerminationReason.ERROR))
    metrics = episode_metrics(episodes)
    reasons = {name: value for name, value in metrics.items() if name.startswith("batch/ended_")}
    expected = {f"batch/ended_{reason.value}": 0.0 for reason in TerminationReason}
    assert reasons == expected | {"batch/ended_timeout": 0.75, "batch/ended_error": 0.25}


def test_environment_metrics_are_means_over_their_episodes() -> None:
    episodes = [make_episode("t", 0, metrics={"guesses": 3, "hits": 1}), make_episode("t", 1, metrics={"guesses": 4})]
    metrics = episode_metrics([*episodes, make_episode("t", 2)])
    assert {name: value for name, value in metrics.items() if name.startswith("env/")} == {
        "env/guesses": 3.5,
        "env/hits": 1.0,
    }


def test_response_lengths_are_tokens_per_trajectory() -> None:
    episodes = [make_episode("t", index) for index in range(3)]
    for episode, sampled in zip(episodes, ([[1, 2], [3]], [[4, 5, 6, 7, 8]], []), strict=True):
        trajectory = Trajectory("agent")
        for ids in sampled:
            reason = "length" if len(ids) > 4 else "stop"
            trajectory.add_step([9], ids, None, info={"finish_reason": reason})
        episode.trajectories = [trajectory]
    metrics = episode_metrics(episodes)
    found = {name: value for name, value in metrics.items() if name.startswith("response_length/")}
    assert found == {
        "response_length/mean": 4.0,
        "response_length/max": 5.0,
        "response_length/truncated": 0.5,
    }


def test_no_episodes_give_no_metrics() -> None:
    assert episode_metrics([]) == {}
    assert reward_metrics([]) == {}
    assert advantage_metrics(build_batch([]).with_columns(advantages=np.zeros(0, np.float32))) == {}


def _by_role(prefix: str, **roles: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}/{role}/{name}": value for role, values in roles.items() for name, value in values.items()}


def test_rewards_by_role() -> None:
    groups = [
        TrajectoryGroup(group_id="a:solver", trajectories=[Trajectory(reward=1.0), Trajectory(reward=3.0)]),
        TrajectoryGroup(group_id="a:judge", trajectories=[Trajectory(reward=-1.0)]),
        TrajectoryGroup(group_id="b:solver", trajectories=[Trajectory(reward=5.0)]),
    ]
    solver = {"mean": 3.0, "std": np.sqrt(8 / 3), "max": 5.0, "min": 1.0}
    judge = {"mean": -1.0, "std": 0.0, "max": -1.0, "min": -1.0}
    assert reward_metrics(groups) == pytest.approx(_by_role("reward", solver=solver, judge=judge))


def test_advantages_by_role_over_sampled_tokens() -> None:
    groups = []
    for role in ("solver", "judge", "silent"):
        trajectory = Trajectory(role)
        trajectory.add_step([1, 2], [3, 4] if role != "silent" else [], None)
        groups.append(TrajectoryGroup(group_id=f"t:{role}", trajectories=[trajectory]))
    batch = build_batch(groups).with_columns(advantages=np.array([9, 9, 0, 2, 9, 9, -1, -1], np.float32))
    solver = {"mean": 1.0, "std": 1.0, "max": 2.0, "min": 0.0, "fraction_zero": 0.5}
    judge = {"mean": -1.0, "std": 0.0, "max": -1.0, "min": -1.0, "fraction_zero": 0.0}
    assert advantage_metrics(batch) == _by_role("advantage", solver=solver, judge=judge)


@pytest.mark.parametrize(
    ("reward", "of_steps", "expected"),
    [
        (1.5, [0.5], 1.5),
        (0.0, [0.5], 0.0),
        (None, [0.5, 0.25], 0.25),
        (None, [0.5, None], None),
        (None, [], None),
        (None, [float("nan")], None),
        (float("nan"), [0.5], None),
        (float("-inf"), [], None),
    ],
)
def test_rewards_come_from_trajectories_or_last_steps(reward: Any, of_steps: Any, expected: float | None) -> None:
    trajectory = Trajectory("agent", [Step([1], [2], reward=value) for value in of_steps], reward)
    assert find_reward(trajectory) == expected


def _step(**fields: Any) -> TrainStep:
    return TrainStep(global_step=0, epoch=0, total_steps=1, tasks=[], **fields)


def test_throughput_counts_what_was_sampled() -> None:
    trajectory = Trajectory("agent")
    trajectory.add_step([1] * 50, [2] * 6, None)
    trajectory.add_step([1] * 50 + [2] * 6 + [3] * 40, [2] * 4, None)
    step = _step(generated=[Episode(id="t:0", trajectories=[trajectory])], timing_dict={"generate": 1.5, "update": 0.5})
    assert throughput_metrics(step) == {
        "time/generate": 1.5,
        "time/update": 0.5,
        "time/step": 2.0,
        "time/tokens_per_second": 5.0,
    }


def test_a_step_without_time_has_no_throughput() -> None:
    assert throughput_metrics(_step()) == {"time/step": 0, "time/tokens_per_second": 0.0}


def test_staleness_counts_only_sampled_tokens() -> None:
    trajectory = Trajectory("agent")
    spans = (VersionSpan(3, 1), VersionSpan(4, 2))
    trajectory.add_step([1] * 50, [2, 3, 4], [-1.0] * 3, weight_version=3, version_spans=spans)
    fresh = Trajectory("agent", [Step([1], [2], weight_version=5)])
    batch = build_batch([TrajectoryGroup(group_id="t:agent", trajectories=[trajectory, fresh])])
    assert staleness_metrics(batch, 5) == {"staleness/mean": 1.0, "staleness/max": 2.0, "staleness/share": 0.75}
