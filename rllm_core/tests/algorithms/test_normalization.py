"""Baselines and scales: by hand, and exact where nothing differs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rllm_core.algorithms.normalization import minus_group_mean, standardized, whiten

OFFSETS = np.array([0, 3, 3, 4])
REWARDS = np.array([1.0, 2.0, 6.0, 5.0])


def test_a_group_of_one_keeps_its_reward() -> None:
    assert minus_group_mean(REWARDS, OFFSETS).tolist() == [-2, -1, 3, 5]


def test_a_group_is_divided_by_its_deviation_and_a_group_of_one_by_one() -> None:
    # Squares about the mean: 4 + 1 + 9 = 14.
    deviation = np.sqrt(14 / 2) + 0.5
    values = standardized(REWARDS, OFFSETS, ddof=1, epsilon=0.5)
    assert values.tolist() == pytest.approx([-2 / deviation, -1 / deviation, 3 / deviation, 5 / 1.5])


@given(
    values=st.lists(st.tuples(st.integers(-80, 80), st.integers(0, 5)), max_size=20),
)
def test_whitening_counts_a_value_as_often_as_it_weighs(values: list[tuple[int, int]]) -> None:
    numbers, weights = np.array(values, np.float64).reshape(-1, 2).T
    repeated = np.repeat(numbers, weights.astype(int))
    expected = np.zeros(len(repeated))
    if len(repeated) and np.ptp(repeated):
        expected = (repeated - repeated.mean()) / np.sqrt(repeated.var(ddof=1) + 1e-8)
    assert np.repeat(whiten(numbers, weights), weights.astype(int)) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert whiten(repeated) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("values", [[], [3.0], [0.9] * 30, [100.1] * 7])
def test_whitening_where_nothing_differs_gives_exactly_zero(values: list[float]) -> None:
    assert whiten(np.array(values)).tolist() == [0.0] * len(values)


def test_whitening_gives_nothing_where_nothing_counts() -> None:
    assert whiten(np.array([1.0, 2.0]), np.zeros(2)).tolist() == [0.0, 0.0]
