"""Sign-flip tests against counting, McNemar's test and each other."""

from __future__ import annotations

from itertools import product
from math import comb

import numpy as np
import pytest

from rllm.evaluation.permutation import drawn_p, exact_p

DIFFERENCES = (3, -1, 0, 4, 2, 2, -3, 5)


def test_the_exact_p_counts_all_signs() -> None:
    signs = np.array(list(product((-1, 1), repeat=len(DIFFERENCES))))
    beyond = np.abs(signs @ np.array(DIFFERENCES)) >= abs(sum(DIFFERENCES))
    assert exact_p(DIFFERENCES) == pytest.approx(beyond.mean())


def test_one_attempt_per_task_is_mcnemar_s_exact_test() -> None:
    better, worse = 9, 2
    tail = sum(comb(11, count) for count in range(worse + 1)) / 2**11
    assert exact_p([1] * better + [-1] * worse + [0] * 40) == pytest.approx(2 * tail)


def test_drawn_signs_come_close_to_all_signs() -> None:
    assert drawn_p([0.1 * each for each in DIFFERENCES]) == pytest.approx(exact_p(DIFFERENCES), abs=0.006)


def test_no_difference_has_p_1() -> None:
    assert exact_p([0, 0]) == drawn_p([0.0, 0.0]) == 1.0


def test_what_takes_too_long_has_no_exact_p() -> None:
    assert exact_p([1000] * 20_000) is None


def test_numbers_beyond_64_bits_have_no_exact_p() -> None:
    assert exact_p([2**70, -1]) is None


def test_models_that_are_alike_are_told_apart_one_time_in_twenty() -> None:
    draw = np.random.default_rng(3)
    found = [exact_p((draw.binomial(8, 0.4, 30) - draw.binomial(8, 0.4, 30)).tolist()) for _ in range(1000)]
    assert 0.03 <= np.mean([p is not None and p <= 0.05 for p in found]) <= 0.06
