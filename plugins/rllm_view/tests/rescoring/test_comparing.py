"""Signs, correlation and the largest differences of two setups."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rllm_view.rescoring.scores import ScoredGroup
from rllm_view.rescoring.summary import LARGEST, agreement


def test_a_change_of_sign_is_a_flip_or_a_loss_or_a_gain(group: Callable[..., ScoredGroup]) -> None:
    groups = [group([0, 0, 0, 0], [1, 1, 0, -1], [2, -1, 1, 0])]
    signs = agreement(groups, 1).signs
    assert (signs.changed, signs.flipped, signs.lost, signs.gained) == (0.75, 0.25, 0.25, 0.25)


def test_a_multiple_correlates_perfectly(group: Callable[..., ScoredGroup]) -> None:
    assert agreement([group([0, 0, 0], [1, 2, -3], [2, 4, -6])], 1).correlation == pytest.approx(1)


def test_what_never_varies_has_no_correlation(group: Callable[..., ScoredGroup]) -> None:
    assert agreement([group([0, 0], [1, 2], [5, 5])], 1).correlation is None


def test_trajectories_that_sampled_nothing_are_left_out(group: Callable[..., ScoredGroup]) -> None:
    found = agreement([group([0, 0, 0], [1, np.nan, -1], [1, np.nan, 1])], 1)
    assert found.signs.changed == 0.5
    assert found.largest[0].trajectory == "t:2"


def test_the_largest_differences_come_first_and_each_from_another_group(group: Callable[..., ScoredGroup]) -> None:
    groups = [group([0, 0], [0, 0], [size, 2 * size], name=f"t{size}:agent") for size in range(8)]
    largest = agreement(groups, 1).largest
    assert [entry.group for entry in largest] == [f"'t{7 - index}:agent' of step 0" for index in range(LARGEST)]
    assert {entry.trajectory for entry in largest} == {"t:1"}
    assert largest[0].other == 14


def test_no_difference_is_no_difference(group: Callable[..., ScoredGroup]) -> None:
    assert agreement([group([0, 1], [0, 1], [0, 1])], 1).largest == ()
