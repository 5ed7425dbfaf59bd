"""Statistics of pieces against loops over pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rllm_core.algorithms import segments
from rllm_core.algorithms.advantage import minus_group_mean, standardize, whiten

PIECES = st.lists(st.lists(st.floats(-1e6, 1e6), max_size=6), max_size=6)


def _flat(pieces: list[list[float]]) -> tuple[segments.Values, segments.Offsets]:
    values = np.array([value for piece in pieces for value in piece], np.float64)
    return values, np.cumsum([0, *map(len, pieces)], dtype=np.int64)


@given(PIECES)
def test_statistics_equal_those_of_a_loop(pieces: list[list[float]]) -> None:
    values, offsets = _flat(pieces)
    assert segments.sizes(offsets).tolist() == [len(piece) for piece in pieces]
    assert segments.sums(values, offsets) == pytest.approx([np.sum(piece) for piece in pieces], rel=1e-9, abs=1e-6)
    means = [np.mean(piece) if piece else 0.0 for piece in pieces]
    assert segments.means(values, offsets) == pytest.approx(means, rel=1e-9, abs=1e-6)
    deviations = [np.std(piece) if piece else 0.0 for piece in pieces]
    assert segments.standard_deviations(values, offsets) == pytest.approx(deviations, rel=1e-9, abs=1e-6)


@given(PIECES)
def test_maxima_centred_values_and_running_sums_equal_loops(pieces: list[list[float]]) -> None:
    values, offsets = _flat(pieces)
    assert segments.maxima(values, offsets).tolist() == [max(piece, default=0.0) for piece in pieces]
    assert segments.alone(offsets).tolist() == [len(piece) == 1 for piece in pieces for _ in piece]
    centred = [value - np.mean(piece) for piece in pieces for value in piece]
    assert segments.center(values, offsets) == pytest.approx(centred, rel=1e-9, abs=1e-6)
    running = [total for piece in pieces for total in np.cumsum(piece)]
    assert segments.running_sums(values, offsets) == pytest.approx(running, rel=1e-9, abs=1e-6)


@given(PIECES)
def test_standard_deviation_may_have_ddof_1(pieces: list[list[float]]) -> None:
    values, offsets = _flat(pieces)
    deviations = [np.std(piece, ddof=1) if len(piece) > 1 else 0.0 for piece in pieces]
    assert segments.standard_deviations(values, offsets, ddof=1) == pytest.approx(deviations, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("value", [0.1, 0.9, 1 / 3, 100.1, 1e-300, 1e15 + 0.3])
def test_equal_elements_are_exactly_centred_without_deviation(value: float) -> None:
    values, offsets = _flat([[value] * size for size in range(1, 33)])
    assert not segments.center(values, offsets).any()
    assert not segments.standard_deviations(values, offsets).any()
    assert not segments.standard_deviations(values, offsets, ddof=1).any()
    assert segments.in_constant(values, offsets).all()


def test_running_sum_is_independent_of_earlier_pieces() -> None:
    values = np.random.default_rng(0).random(1_000_000)
    offsets = np.arange(0, len(values) + 1, 4)
    running = segments.running_sums(values, offsets)
    assert np.abs(running - np.cumsum(values.reshape(-1, 4), axis=1).ravel()).max() < 1e-10


@given(st.lists(st.lists(st.sampled_from([0.1, 0.1 + 1e-17, 0.2, 0.30000000000000004, 0.3]), max_size=4), max_size=6))
def test_constant_means_the_very_same_number(pieces: list[list[float]]) -> None:
    values, offsets = _flat(pieces)
    assert segments.constant(values, offsets).tolist() == [len(set(piece)) <= 1 for piece in pieces]


@given(PIECES)
def test_spreading_repeats_a_value_for_each_element(pieces: list[list[float]]) -> None:
    _, offsets = _flat(pieces)
    numbers = np.arange(len(pieces), dtype=np.float64)
    expected = [number for number, piece in enumerate(pieces) for _ in piece]
    assert segments.spread(numbers, offsets).tolist() == expected


def test_empty_pieces_do_not_take_the_neighbors_elements() -> None:
    values, offsets = _flat([[], [1.0, 2.0], [], [], [4.0], []])
    assert segments.sums(values, offsets).tolist() == [0, 3, 0, 0, 4, 0]


OFFSETS = np.array([0, 3, 3, 4])


REWARDS = np.array([1.0, 2.0, 6.0, 5.0])


def test_a_group_of_one_keeps_its_reward() -> None:
    assert minus_group_mean(REWARDS, OFFSETS).tolist() == [-2, -1, 3, 5]


def test_groups_are_divided_by_deviation_singles_by_one() -> None:
    # Squares about the mean: 4 + 1 + 9 = 14.
    deviation = np.sqrt(14 / 2) + 0.5
    values = standardize(REWARDS, OFFSETS, ddof=1, epsilon=0.5)
    assert values.tolist() == pytest.approx([-2 / deviation, -1 / deviation, 3 / deviation, 5 / 1.5])


@given(
    values=st.lists(st.tuples(st.integers(-80, 80), st.integers(0, 5)), max_size=20),
)
def test_whitening_counts_a_value_by_its_weight(values: list[tuple[int, int]]) -> None:
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
