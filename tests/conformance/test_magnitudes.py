"""Rewards of any size: the formula's numbers, or an error with the limit. Never a silent 0.

Python's `statistics` computes with fractions, so nothing there overflows or is rounded away.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from expecting import expect_error
from hypothesis import example, given, strategies as st

from rllm_core.algorithms import segments
from rllm_core.algorithms.advantage import whiten
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.errors import AdvantageError
from rllm_core.pipeline.metrics import advantage_metrics, reward_metrics
from rllm_estimators.components import compare_to_others

from .every_estimator import VARIANTS, advantages, batch_of, flat, of_rewards

EPSILONS_GONE = 1e12
"""For rewards of this size, no epsilon of a formula matters."""
EPSILONS_RULE = 1e-18
"""Rewards of this size are negligible compared with the epsilons."""
SMALLEST_RETURN = 1e-36
NORMALIZED = {
    *("grpo", "grpo_verl", "grpo_trl", "reinforce_plus_plus_baseline", "reinforce_plus_plus_baseline_verl"),
    *("prpo", "grpo_passk", "gdpo", "reinforce_plus_plus", "reinforce_plus_plus_of_steps"),
    *("gae_whitened", "step_reinforce", "maxrl", "maxrl_skyrl"),
    *("gigpo", "grpo_length", "hierarchical_grpo", "liteppo"),
}
"""Estimators that divide by a value that grows with the rewards."""
UNLIKE = {"a2po", "remax", "gdpo_nemo", "spo", "mix"}
"""remax compares with a fixed greedy reward of 0.5. gdpo_nemo has its own test. a2po has a temperature.
spo, which is a part of mix here, starts from an estimate of 0.5 for rewards from 0 to 1."""
FLOAT32 = np.finfo(np.float32)

eighths = st.integers(1, 40).map(lambda number: number / 8)
groups_of_eighths = st.lists(st.lists(eighths, min_size=2, max_size=5), min_size=2, max_size=4)
sizes, small, large = (
    st.integers(lowest, highest).map(lambda exponent: float(f"1e{exponent}"))
    for lowest, highest in ((-300, 300), (-300, -18), (12, 300))
)
reasonable = [[1.0, 2.0, 5.0, 0.5], [3.0, 1.0, 1.0], [2.0, 2.0]]


def of_size(size: float, groups: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[size * reward for reward in group] for group in groups]


def estimated(label: str, groups: Sequence[Sequence[float]]) -> Any:
    return np.array(flat(advantages(label, of_rewards(groups))))


def close(values: Any, expected: Any) -> bool:
    """Compare to the digits of float32. Differences that cancel have no digits."""
    return bool(np.allclose(values, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max(initial=0.0)))


@pytest.mark.long
@example(size=1e155, groups=reasonable)
@example(size=1e300, groups=reasonable)
@given(size=large, groups=groups_of_eighths)
def test_normalized_advantages_do_not_depend_on_reward_size(size: float, groups: list[list[float]]) -> None:
    for label in NORMALIZED:
        if label == "gae_whitened" and size > 1e36:
            with pytest.raises(AdvantageError, match=r"(?s)returns .*float32.*3\.4e\+38"):
                estimated(label, of_size(size * 1e3, groups))  # targets of a critic have the size of the rewards
        else:
            expected = estimated(label, of_size(EPSILONS_GONE, groups))
            assert close(estimated(label, of_size(size, groups)), expected), label


@given(size=small, groups=groups_of_eighths)
def test_maxrl_has_no_epsilon(size: float, groups: list[list[float]]) -> None:
    assert close(estimated("maxrl", of_size(size, groups)), estimated("maxrl", of_size(EPSILONS_GONE, groups)))


@pytest.mark.parametrize("size", [1e-300, 1e-170, 1e-30, 1e30, 1e155, 1e300])
def test_nemo_gdpo_divides_by_deviation_of_others(size: float) -> None:
    """Its last division has no epsilon, so its advantages have one size if only the first epsilon matters."""
    groups = [[1.0, 2.0, 5.0, 0.5], [3.0, 1.0, 2.5]]
    expected = estimated("gdpo_nemo", of_size(EPSILONS_GONE if size > 1 else EPSILONS_RULE, groups))
    assert close(estimated("gdpo_nemo", of_size(size, groups)), expected)
    assert np.abs(expected).max() > 0.5


@pytest.mark.long
@example(size=1e155, groups=reasonable)
@example(size=1e-170, groups=reasonable)
@example(size=1e30, groups=reasonable)
@given(size=sizes, groups=groups_of_eighths)
def test_other_advantages_grow_with_rewards_within_float32(size: float, groups: list[list[float]]) -> None:
    for label in set(VARIANTS) - NORMALIZED - UNLIKE:
        _grows(label, size, 1.0, groups)


@pytest.mark.long
@example(size=1e-170, groups=reasonable)
@example(size=1e-30, groups=reasonable)
@given(size=small, groups=groups_of_eighths)
def test_rewards_below_epsilon_are_divided_by_epsilon(size: float, groups: list[list[float]]) -> None:
    # gae's returns have the size of the rewards, which float32 must be able to store.
    for label in NORMALIZED - {"maxrl"} - ({"gae_whitened"} if size < SMALLEST_RETURN else set()):
        _grows(label, size, EPSILONS_RULE, groups)


def test_returns_of_gae_below_float32_are_refused() -> None:
    with pytest.raises(AdvantageError, match=r"returns of at most .* which float32 cannot tell from 0"):
        estimated("gae_whitened", of_size(1e-40, reasonable))


def _grows(label: str, size: float, than: float, groups: list[list[float]]) -> None:
    # At this size, float32 also stores all digits of the small ones.
    unit = estimated(label, of_size(than, groups)) / than
    expected = unit * size
    largest = np.abs(expected).max(initial=0.0)
    if largest > FLOAT32.max or 0 < largest < FLOAT32.tiny:
        word = "infinite in float32" if largest > 1 else "which float32 cannot tell from 0"
        limit = "3.4e+38" if largest > 1 else "1.2e-38"
        with pytest.raises(AdvantageError, match=word) as caught:
            estimated(label, of_size(size, groups))
        assert limit in str(caught.value)
    elif largest < 1e37 and (largest > 1e-36 or largest == 0.0):  # the rest are in between
        assert close(estimated(label, of_size(size, groups)), expected)


@given(size=sizes, groups=groups_of_eighths)
@example(size=1e300, groups=reasonable)
@example(size=1e-170, groups=reasonable)
def test_means_and_deviations_are_those_of_exact_arithmetic(size: float, groups: list[list[float]]) -> None:
    rewards = of_size(size, [*groups, [1.0]])
    flat_rewards = np.concatenate(rewards)
    offsets = np.concatenate(([0], np.cumsum([len(group) for group in rewards])))
    assert np.allclose(segments.means(flat_rewards, offsets), [statistics.mean(group) for group in rewards], rtol=1e-12)
    for ddof, exact in ((0, statistics.pstdev), (1, statistics.stdev)):
        expected = [exact(group) if len(group) > 1 else 0.0 for group in rewards]
        found = segments.standard_deviations(flat_rewards, offsets, ddof=ddof)
        assert np.allclose(found / size, np.array(expected) / size, rtol=1e-12)
        together = segments.deviation(flat_rewards, ddof=ddof)
        assert together / size == pytest.approx(exact(flat_rewards.tolist()) / size, rel=1e-12)
    assert segments.mean(flat_rewards) == pytest.approx(statistics.mean(flat_rewards.tolist()), rel=1e-12)


@given(size=sizes, groups=groups_of_eighths)
@example(size=1e200, groups=reasonable)
@example(size=1e-200, groups=reasonable)
def test_deviations_of_others_equal_exact_arithmetic(size: float, groups: list[list[float]]) -> None:
    rewards = of_size(size, groups)
    offsets = np.concatenate(([0], np.cumsum([len(group) for group in rewards])))
    distances, deviations = compare_to_others(np.concatenate(rewards), offsets)
    for group, start in zip(rewards, offsets, strict=False):
        for place, reward in enumerate(group):
            others = group[:place] + group[place + 1 :]
            deviation = statistics.stdev(others) if len(others) > 1 else 0.0
            assert deviations[start + place] / size == pytest.approx(deviation / size, rel=1e-9, abs=1e-9)
            assert distances[start + place] / size == pytest.approx((reward - statistics.mean(others)) / size, abs=1e-9)


@pytest.mark.parametrize("weights", [None, np.array([1.0, 0.0, 3.0, 2.0])], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("size", [1e-300, 1e-170, 1e-20, 1e20, 1e155, 1e300])
def test_whitening_has_no_largest_number(size: float, weights: Any) -> None:
    values = np.array([1.0, 2.0, 5.0, 3.0])
    copies = values if weights is None else np.repeat(values, weights.astype(int))
    variance = statistics.variance((size * copies).tolist()) if size < 1e150 else np.inf
    divisor = np.sqrt(variance / size**2 + 1e-8 / size / size) if 1e-100 < size < 1e100 else None
    if divisor is None:
        divisor = copies.std(ddof=1) if size > 1 else 1e-4 / size
    assert np.allclose(whiten(size * values, weights), (values - copies.mean()) / divisor, rtol=1e-9, atol=0)


@pytest.mark.parametrize("size", [1e-170, 1.0, 1e155, 1e300])
def test_metrics_of_rewards_have_the_deviation(size: float) -> None:
    rewards = [1.0 * size, 2.0 * size, 5.0 * size]
    group = TrajectoryGroup(group_id="t:agent", trajectories=[Trajectory("agent", reward=reward) for reward in rewards])
    found = reward_metrics([group])
    assert found["reward/agent/std"] / size == pytest.approx(statistics.pstdev(rewards) / size)
    assert found["reward/agent/mean"] / size == pytest.approx(8 / 3)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_metrics_of_advantages_have_the_deviation(size: float) -> None:
    batch = batch_of(of_rewards([[1.0, 2.0, 5.0]]))
    values = np.where(batch.loss_mask, size * (1.0 + np.arange(len(batch.tokens)) % 3), 0.0).astype(np.float32)
    found = advantage_metrics(batch.with_columns(advantages=values))
    sampled = values[batch.loss_mask].astype(float).tolist()
    assert found["advantage/agent/std"] / size == pytest.approx(statistics.pstdev(sampled) / size)


def test_group_next_to_extreme_group_keeps_its_digits() -> None:
    offsets = np.array([0, 3, 6])
    ordinary = np.array([0.1, 0.2, 0.4])
    for extreme in (1e-200, 1e200):
        both = np.concatenate([ordinary, extreme * ordinary])
        for function in (segments.means, segments.standard_deviations):
            assert function(both, offsets)[0] == function(ordinary, offsets[:2])[0]
        assert segments.center(both, offsets)[:3].tolist() == segments.center(ordinary, offsets[:2]).tolist()


def test_distances_beyond_float64_are_refused() -> None:
    for label in ("grpo", "rloo", "prpo"):
        with np.errstate(all="ignore"), expect_error(AdvantageError, "advantages-not-finite", "NaN", "float32"):
            estimated(label, [[1.7e308, -1.7e308, -1.7e308]])
