"""Sign-flip tests against counting and McNemar's test."""

from __future__ import annotations

from itertools import product
from math import comb

import numpy as np
import pytest

from rllm.evaluation.permutation import sign_flip_p

DIFFERENCES = (3, -1, 0, 4, 2, 2, -3, 5)
NEAR = 0.006
"""Three standard errors of a share of 100,000 draws."""


def test_p_is_near_the_share_of_all_signs() -> None:
    signs = np.array(list(product((-1, 1), repeat=len(DIFFERENCES))))
    beyond = np.abs(signs @ np.array(DIFFERENCES)) >= abs(sum(DIFFERENCES))
    assert sign_flip_p([0.1 * each for each in DIFFERENCES]) == pytest.approx(beyond.mean(), abs=NEAR)


def test_one_rollout_per_task_is_near_mcnemar_s_exact_test() -> None:
    better, worse = 9, 2
    tail = sum(comb(11, count) for count in range(worse + 1)) / 2**11
    assert sign_flip_p([1] * better + [-1] * worse + [0] * 40) == pytest.approx(2 * tail, abs=NEAR)


def test_no_difference_has_p_1() -> None:
    assert sign_flip_p([0.0, 0.0]) == 1.0
