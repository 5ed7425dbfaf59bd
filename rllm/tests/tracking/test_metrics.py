"""Every figure on examples small enough to count by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Episode, Step, TerminationReason, Trajectory, TrajectoryGroup
from rllm_core.data.version_spans import VersionSpan
from rllm_core.pipeline.metrics import (
    advantage_metrics,
    episode_metrics,
    pass_at_k,
    reward_metrics,
    reward_of,
    split_validation_name,
    staleness_metrics,
    throughput_metrics,
    validation_metrics,
)

MakeRollout = Callable[..., Episode]


def test_solve_rates_are_shares_of_attempts_and_of_tasks(rollout: MakeRollout) -> None:
    solved = {"all": (True, True), "none": (False, False), "some": (True, False), "also none": (False,)}
    episodes = [rollout(task, i, correct=correct) for task, seen in solved.items() for i, correct in enumerate(seen)]
    metrics = episode_metrics(episodes)
    assert metrics["batch/solved"] == pytest.approx(3 / 7)
    assert (metrics["batch/solve_all"], metrics["batch/solve_none"], metrics["batch/solve_partial"]) == (
        0.25,
        0.5,
        0.25,
    )
    assert metrics["batch/episodes"] == 7


def test_a_task_of_another_round_is_another_task(rollout: MakeRollout) -> None:
    first, second = ([rollout("t", index, correct=correct) for index in range(2)] for correct in (True, False))
    metrics = episode_metrics(first, second)
    assert (metrics["batch/solve_all"], metrics["batch/solve_none"], metrics["batch/solve_partial"]) == (0.5, 0.5, 0.0)
    assert (metrics["batch/episodes"], metrics["batch/solved"]) == (4, 0.5)


def test_every_way_of_ending_is_a_share_of_attempts(rollout: MakeRollout) -> None:
    episodes = [rollout("t", index, reason=TerminationReason.TIMEOUT) for index in range(3)]
    episodes.append(rollout("t", 3, reason=TerminationReason.ERROR))
    metrics = episode_metrics(episodes)
    endings = {name: value for name, value in metrics.items() if name.startswith("batch/ended_")}
    expected = {f"batch/ended_{reason.value}": 0.0 for reason in TerminationReason}
    assert endings == expected | {"batch/ended_timeout": 0.75, "batch/ended_error": 0.25}


def test_the_environment_s_figures_are_means_over_the_episodes_that_have_them(rollout: MakeRollout) -> None:
    episodes = [rollout("t", 0, metrics={"guesses": 3, "hits": 1}), rollout("t", 1, metrics={"guesses": 4})]
    metrics = episode_metrics([*episodes, rollout("t", 2)])
    assert {name: value for name, value in metrics.items() if name.startswith("env/")} == {
        "env/guesses": 3.5,
        "env/hits": 1.0,
    }


def test_response_lengths_are_tokens_per_trajectory(rollout: MakeRollout) -> None:
    episodes = [rollout("t", index) for index in range(3)]
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


def test_no_episodes_have_no_figures() -> None:
    assert episode_metrics([]) == {}
    assert reward_metrics([]) == {}
    assert validation_metrics([], 4) == {}
    assert advantage_metrics(build_batch([]).with_columns(advantages=np.zeros(0, np.float32))) == {}


def test_rewards_by_role() -> None:
    groups = [
        TrajectoryGroup(group_id="a:solver", trajectories=[Trajectory(reward=1.0), Trajectory(reward=3.0)]),
        TrajectoryGroup(group_id="a:judge", trajectories=[Trajectory(reward=-1.0)]),
        TrajectoryGroup(group_id="b:solver", trajectories=[Trajectory(reward=5.0)]),
    ]
    assert reward_metrics(groups) == {
        "reward/solver/mean": 3.0,
        "reward/solver/std": pytest.approx(np.sqrt(8 / 3)),
        "reward/solver/max": 5.0,
        "reward/solver/min": 1.0,
        "reward/judge/mean": -1.0,
        "reward/judge/std": 0.0,
        "reward/judge/max": -1.0,
        "reward/judge/min": -1.0,
    }


def test_advantages_by_role_over_sampled_tokens() -> None:
    groups = []
    for role in ("solver", "judge", "silent"):
        trajectory = Trajectory(role)
        trajectory.add_step([1, 2], [3, 4] if role != "silent" else [], None)
        groups.append(TrajectoryGroup(group_id=f"t:{role}", trajectories=[trajectory]))
    batch = build_batch(groups).with_columns(advantages=np.array([9, 9, 0, 2, 9, 9, -1, -1], np.float32))
    assert advantage_metrics(batch) == {
        "advantage/solver/mean": 1.0,
        "advantage/solver/std": 1.0,
        "advantage/solver/max": 2.0,
        "advantage/solver/min": 0.0,
        "advantage/solver/fraction_zero": 0.5,
        "advantage/judge/mean": -1.0,
        "advantage/judge/std": 0.0,
        "advantage/judge/max": -1.0,
        "advantage/judge/min": -1.0,
        "advantage/judge/fraction_zero": 0.0,
    }


@pytest.mark.parametrize("rollouts", range(1, 8))
def test_pass_at_k_is_the_share_of_draws_that_hold_a_correct_attempt(rollouts: int) -> None:
    for correct in range(rollouts + 1):
        outcomes = [True] * correct + [False] * (rollouts - correct)
        for k in range(1, rollouts + 1):
            draws = [any(draw) for draw in itertools.combinations(outcomes, k)]
            assert pass_at_k(rollouts, correct, k) == pytest.approx(sum(draws) / len(draws), abs=1e-12)


def test_pass_at_more_than_there_are_is_whether_any_is_correct() -> None:
    assert (pass_at_k(2, 1, 5), pass_at_k(2, 0, 5)) == (1.0, 0.0)


def test_validation_by_data_source(rollout: MakeRollout) -> None:
    episodes = [
        rollout("a", 0, correct=True, rewards=[1.0], source="math", metrics={"guesses": 2}),
        rollout("a", 1, correct=False, rewards=[0.5], source="math", metrics={"guesses": 4}),
        rollout("b", 0, correct=False, rewards=[0.0, -0.5], source="math"),
        rollout("b", 1, correct=False, source="math"),
        rollout("c", 0, correct=True, rewards=[2.0], source="code"),
        rollout("c", 1, correct=True, rewards=[None], source="code"),
        rollout("d", 0, source="empty"),
    ]
    assert validation_metrics(episodes, 2) == {
        "val/math/pass@1": 0.25,
        "val/math/pass@2": 0.5,
        "val/math/reward": 0.25,
        "val/math/guesses": 3.0,
        "val/code/pass@1": 1.0,
        "val/code/pass@2": 1.0,
        "val/code/reward": 2.0,
        "val/code/missing_rewards": 1.0,
        "val/empty/pass@1": 0.0,
        "val/empty/pass@2": 0.0,
    }


def test_rewards_that_are_missing_are_left_out_of_the_mean_and_counted(rollout: MakeRollout) -> None:
    unusable = [None, float("nan"), float("inf"), float("-inf")]
    metrics = validation_metrics([rollout("a", rewards=[1.0, 0.0, *unusable]), rollout("b", rewards=[0.5])], 1)
    assert (metrics["val/default/reward"], metrics["val/default/missing_rewards"]) == (0.5, 4.0)
    metrics = validation_metrics([rollout("a", rewards=[None])], 1)
    assert "val/default/reward" not in metrics
    assert metrics["val/default/missing_rewards"] == 1.0


def test_validation_tells_roles_apart_where_there_are_several(rollout: MakeRollout) -> None:
    episodes = [rollout("a", source="two"), rollout("b", source="two"), rollout("c", rewards=[0.25], source="one")]
    for episode, judged in zip(episodes[:2], (1.0, None), strict=True):
        solvers = [Trajectory("solver", reward=1.0), Trajectory("solver", reward=0.5), Trajectory(reward=-1.0)]
        episode.trajectories += [*solvers, Trajectory("judge", reward=judged)]
    rewards = {name: value for name, value in validation_metrics(episodes, 1).items() if "reward" in name}
    assert rewards == {
        "val/two/reward": pytest.approx(2 / 7),
        "val/two/reward/solver": 0.75,
        "val/two/reward/agent": -1.0,
        "val/two/reward/judge": 1.0,
        "val/two/missing_rewards": 1.0,
        "val/one/reward": 0.25,
    }


def test_a_trajectory_without_a_reward_has_that_of_its_last_step(rollout: MakeRollout) -> None:
    steps = [Step([1], [2], reward=4.0), Step([1], [2], reward=0.25)]
    episode = rollout("a")
    episode.trajectories.append(Trajectory("agent", steps))
    assert validation_metrics([episode], 1) == {"val/default/pass@1": 0.0, "val/default/reward": 0.25}


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
def test_a_reward_is_the_trajectory_s_or_the_last_step_s(
    reward: float | None, of_steps: list[float | None], expected: float | None
) -> None:
    trajectory = Trajectory("agent", [Step([1], [2], reward=value) for value in of_steps], reward)
    assert reward_of(trajectory) == expected


@pytest.mark.parametrize("source", ["default", "openai/gsm8k", "a/b/c", "val", "val/x"])
@pytest.mark.parametrize("metric", ["reward", "reward/judge", "pass@1", "missing_rewards"])
def test_a_validation_name_is_split_into_data_source_and_figure(source: str, metric: str) -> None:
    assert split_validation_name(f"val/{source}/{metric}") == (source, metric)


def test_one_rollout_gives_pass_at_one_only(rollout: MakeRollout) -> None:
    assert set(validation_metrics([rollout("a", correct=True, rewards=[1.0])], 1)) == {
        "val/default/pass@1",
        "val/default/reward",
    }


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


def test_staleness_counts_sampled_tokens_alone() -> None:
    trajectory = Trajectory("agent")
    spans = (VersionSpan(3, 1), VersionSpan(4, 2))
    trajectory.add_step([1] * 50, [2, 3, 4], [-1.0] * 3, weight_version=3, version_spans=spans)
    fresh = Trajectory("agent", [Step([1], [2], weight_version=5)])
    batch = build_batch([TrajectoryGroup(group_id="t:agent", trajectories=[trajectory, fresh])])
    assert staleness_metrics(batch, 5) == {"staleness/mean": 1.0, "staleness/max": 2.0, "staleness/share": 0.75}
