"""Intervals, and sign-flip tests, against values computed otherwise."""

from __future__ import annotations

from itertools import product
from math import comb

import numpy as np
import pytest

from rllm.evaluation.statistics import (
    Estimate,
    choose_ks,
    drop_residues,
    estimate_difference,
    estimate_mean,
    mean_reward,
    share,
    sign_flip_p,
    wilson,
)


def test_ks_are_powers_of_two_and_all_rollouts() -> None:
    ks = [choose_ks(rollouts) for rollouts in (1, 2, 3, 8, 10)]
    assert ks == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 10]]


def test_one_rollout_per_task_has_wilson_s_interval() -> None:
    of_tasks = [1.0] * 7 + [0.0] * 3
    estimate = share(of_tasks, rollouts=10)
    assert (estimate.low, estimate.high) == pytest.approx(wilson(0.7, 10))
    assert wilson(0.7, 10) == pytest.approx((0.39678, 0.89221), abs=1e-5)  # statsmodels' proportion_confint


def test_rollouts_that_agree_within_tasks_count_once() -> None:
    of_tasks = [1.0] * 7 + [0.0] * 3
    assert share(of_tasks, rollouts=160) == share(of_tasks, rollouts=10)
    estimate = share([1.0] * 16, rollouts=256)
    assert (estimate.low, estimate.high) == (pytest.approx(0.8064, abs=1e-4), 1.0)


def test_one_task_has_no_interval() -> None:
    assert (share([0.5], rollouts=64).low, estimate_mean([0.5]).low) == (None, None)


@pytest.mark.parametrize("alike", [0.2, 1.0, 50.0])
def test_intervals_cover_truth_for_correlated_rollouts(alike: float) -> None:
    """Chances of tasks are drawn from a beta distribution: the smaller `alike`, the more do rollouts end alike."""
    draw = np.random.default_rng(1)
    tasks, rollouts, covered = 40, 8, []
    for _ in range(2000):
        chances = draw.beta(0.3 * alike, 0.7 * alike, tasks)
        estimate = share((draw.binomial(rollouts, chances) / rollouts).tolist(), tasks * rollouts)
        assert estimate.low is not None and estimate.high is not None
        covered.append(estimate.low <= 0.3 <= estimate.high)
    assert 0.93 <= np.mean(covered) <= 0.99


def test_intervals_of_a_reward_cover_truth() -> None:
    draw = np.random.default_rng(2)
    estimates = [estimate_mean(draw.normal(1.0, 2.0, 8).tolist()) for _ in range(2000)]
    covered = [each.low is not None and each.high is not None and each.low <= 1.0 <= each.high for each in estimates]
    assert 0.935 <= np.mean(covered) <= 0.965


@pytest.mark.parametrize("same", [0.0, 1.0])
def test_rewards_at_one_bound_have_wilsons_interval(same: float) -> None:
    estimate = mean_reward([[same] * 4] * 200)
    assert (estimate.low, estimate.high) == pytest.approx(wilson(same, 200))
    assert 0.018 < abs((estimate.high or 0.0) - (estimate.low or 0.0)) < 0.019
    assert estimate.interval == "wilson"


def test_binary_rewards_have_the_interval_of_passes() -> None:
    rewards = [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]]
    shares = [float(np.mean(of_task)) for of_task in rewards]
    assert mean_reward(rewards) == share(shares, rollouts=12)


def test_rewards_that_hardly_vary_have_a_narrow_interval() -> None:
    draw = np.random.default_rng(4)
    rewards = draw.uniform(0.49, 0.51, (200, 1)).tolist()
    estimate, student = mean_reward(rewards), estimate_mean([reward for (reward,) in rewards])
    assert (estimate.low, estimate.high) == pytest.approx((student.low, student.high), abs=1e-4)


@pytest.mark.parametrize("same", [-1.0, 5.0])
def test_equal_unbounded_rewards_have_no_interval(same: float) -> None:
    assert mean_reward([[same]] * 9) == Estimate(same, None, None)


def test_rewards_outside_unit_interval_have_students_interval() -> None:
    rewards = [[2.0], [0.0], [1.0]]
    assert mean_reward(rewards) == estimate_mean([2.0, 0.0, 1.0])
    assert mean_reward(rewards).interval == "student"


@pytest.mark.long
@pytest.mark.parametrize("chance", [0.01, 0.3])
def test_intervals_of_rare_rewards_cover_truth(chance: float) -> None:
    """Each rollout gets a reward of 0, or with this chance 0.5 or 1."""
    draw = np.random.default_rng(3)
    tasks, rollouts, covered = 100, 2, []
    for _ in range(1000):
        rewards = draw.choice([0.0, 0.5, 1.0], (tasks, rollouts), p=[1 - chance, chance / 2, chance / 2])
        estimate = mean_reward(rewards.tolist())
        assert estimate.low is not None and estimate.high is not None
        covered.append(estimate.low <= 0.75 * chance <= estimate.high)
    assert 0.93 <= np.mean(covered) <= 0.99


def test_equal_tasks_have_tangos_interval() -> None:
    # Tango (1998), the score interval without a discordant pair.
    estimate = estimate_difference([0.0] * 200)
    assert (estimate.low, estimate.high) == pytest.approx((-0.018846, 0.018846), abs=1e-6)
    assert estimate_difference([1.0, 0.0, 0.0]) == estimate_mean([1.0, 0.0, 0.0])


DIFFERENCES = (3, -1, 0, 4, 2, 2, -3, 5)
NEAR = 0.006
"""Three standard errors of a share of 100,000 draws."""


def test_p_is_near_the_share_of_all_signs() -> None:
    signs = np.array(list(product((-1, 1), repeat=len(DIFFERENCES))))
    beyond = np.abs(signs @ np.array(DIFFERENCES)) >= abs(sum(DIFFERENCES))
    assert sign_flip_p([0.1 * each for each in DIFFERENCES]) == pytest.approx(beyond.mean(), abs=NEAR)


def test_one_rollout_per_task_is_near_mcnemars_test() -> None:
    better, worse = 9, 2
    tail = sum(comb(11, count) for count in range(worse + 1)) / 2**11
    assert sign_flip_p([1] * better + [-1] * worse + [0] * 40) == pytest.approx(2 * tail, abs=NEAR)


@pytest.mark.parametrize("differences", [[0.0, 0.0], [-2 / 3, -1 / 3, 2 / 3, 1 / 3]])
def test_no_mean_difference_has_p_1(differences: list[float]) -> None:
    """The second sum is not exactly 0."""
    assert sign_flip_p(differences) == 1.0


@pytest.mark.parametrize("unit", [1.0, 1e-9, 1e9])
@pytest.mark.parametrize("rewards", [[1, 2, 3], [1, 3, 4], [2, 2, 7]])
def test_means_in_another_order_are_equal(rewards: list[int], unit: float) -> None:
    """As 2.1, 2.2 and 2.3, whose mean is 2.2 or 2.1999999999999997. Spread of 0 means no interval."""
    scaled = [(2 + each / 10) * unit for each in rewards]
    one, other = np.mean(scaled), np.mean(scaled[::-1])
    assert set(drop_residues(np.array([other - one]), float(one))) == {0}
    assert mean_reward([scaled, scaled[::-1]]).interval == ("wilson" if unit < 0.1 else None)


def test_equal_differences_of_means_are_equal() -> None:
    differences = np.array([2 / 3 - 1 / 3, 1 - 2 / 3, 1 / 3])
    assert len(set(differences)) > 1
    assert len(set(drop_residues(differences, 1.0))) == 1
