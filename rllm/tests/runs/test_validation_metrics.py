"""Metrics of a validation on examples small enough to count by hand."""

from __future__ import annotations

import itertools

import pytest
from small_episodes import make_episode

from rllm.runs.validation_metrics import pass_at_k, split_validation_name, validation_metrics
from rllm_core.data.types import Step, Trajectory


@pytest.mark.parametrize("rollouts", range(1, 8))
def test_pass_at_k_equals_share_of_correct_draws(rollouts: int) -> None:
    # More draws than rollouts: whether any is correct.
    assert (pass_at_k(rollouts, 1, 9), pass_at_k(rollouts, 0, 9)) == (1.0, 0.0)
    for correct in range(rollouts + 1):
        outcomes = [True] * correct + [False] * (rollouts - correct)
        for k in range(1, rollouts + 1):
            draws = [any(draw) for draw in itertools.combinations(outcomes, k)]
            assert pass_at_k(rollouts, correct, k) == pytest.approx(sum(draws) / len(draws), abs=1e-12)


def test_validation_by_data_source() -> None:
    episodes = [
        make_episode("a", 0, correct=True, rewards=[1.0], source="math", metrics={"guesses": 2}),
        make_episode("a", 1, correct=False, rewards=[0.5], source="math", metrics={"guesses": 4}),
        make_episode("b", 0, correct=False, rewards=[0.0, -0.5], source="math"),
        make_episode("b", 1, correct=False, source="math"),
        make_episode("c", 0, correct=True, rewards=[2.0], source="code"),
        make_episode("c", 1, correct=True, rewards=[None], source="code"),
        make_episode("d", 0, source="empty"),
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


def test_missing_rewards_are_counted_not_averaged() -> None:
    unusable = [None, float("nan"), float("inf"), float("-inf")]
    metrics = validation_metrics(
        [make_episode("a", rewards=[1.0, 0.0, *unusable]), make_episode("b", rewards=[0.5])], 1
    )
    assert (metrics["val/default/reward"], metrics["val/default/missing_rewards"]) == (0.5, 4.0)
    metrics = validation_metrics([make_episode("a", rewards=[None])], 1)
    assert "val/default/reward" not in metrics
    assert metrics["val/default/missing_rewards"] == 1.0


def test_validation_tells_roles_apart_where_there_are_several() -> None:
    episodes = [
        make_episode("a", source="two"),
        make_episode("b", source="two"),
        make_episode("c", rewards=[0.25], source="one"),
    ]
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


def test_last_step_gives_a_missing_reward() -> None:
    steps = [Step([1], [2], reward=4.0), Step([1], [2], reward=0.25)]
    episode = make_episode("a")
    episode.trajectories.append(Trajectory("agent", steps))
    assert validation_metrics([episode], 1) == {"val/default/pass@1": 0.0, "val/default/reward": 0.25}
    assert validation_metrics([], 4) == {}


def test_validation_name_is_split_into_source_and_metric() -> None:
    for metric in ("reward", "reward/judge", "pass@1", "missing_rewards"):
        for source in ("default", "openai/gsm8k", "a/b/c", "val", "val/x"):
            assert split_validation_name(f"val/{source}/{metric}") == (source, metric)
