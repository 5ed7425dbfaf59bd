"""Signs, correlation and the largest differences of two setups."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rllm_view.rescoring.scores import ScoredGroup, TokenTally
from rllm_view.rescoring.summary import LARGEST, agreement


@pytest.fixture
def tally() -> TokenTally:
    tally = TokenTally(n_setup=2)
    tally.add(np.array([[1, 1, -1, 0], [1, -1, -1, 1]], np.float32))
    return tally


def test_a_change_of_sign_is_a_flip_or_a_loss_or_a_gain(group: Callable[..., ScoredGroup], tally: TokenTally) -> None:
    groups = [group([0, 0, 0, 0], [1, 1, 0, -1], [2, -1, 1, 0])]
    signs = agreement(groups, tally, 1).signs
    assert (signs.changed, signs.flipped, signs.lost, signs.gained) == (0.75, 0.25, 0.25, 0.25)


def test_tokens_are_counted_by_their_own_signs(group: Callable[..., ScoredGroup], tally: TokenTally) -> None:
    assert agreement([group([0], [1], [1])], tally, 1).signs.tokens_changed == 0.5
    assert tally.zero.tolist() == [1, 0]


def test_a_multiple_correlates_perfectly(group: Callable[..., ScoredGroup], tally: TokenTally) -> None:
    assert agreement([group([0, 0, 0], [1, 2, -3], [2, 4, -6])], tally, 1).correlation == pytest.approx(1)


def test_what_never_varies_has_no_correlation(group: Callable[..., ScoredGroup], tally: TokenTally) -> None:
    assert agreement([group([0, 0], [1, 2], [5, 5])], tally, 1).correlation is None


def test_trajectories_that_sampled_nothing_are_left_out(group: Callable[..., ScoredGroup], tally: TokenTally) -> None:
    found = agreement([group([0, 0, 0], [1, np.nan, -1], [1, np.nan, 1])], tally, 1)
    assert found.signs.changed == 0.5
    assert found.largest[0].member == 2


def test_the_largest_differences_come_first_and_each_from_another_group(
    group: Callable[..., ScoredGroup], tally: TokenTally
) -> None:
    groups = [group([0, 0], [0, 0], [size, 2 * size], name=f"t{size}:agent") for size in range(8)]
    largest = agreement(groups, tally, 1).largest
    assert [entry.group.group_id for entry in largest] == [f"t{7 - index}:agent" for index in range(LARGEST)]
    assert {entry.member for entry in largest} == {1}
    assert largest[0].other == 14


def test_no_difference_is_no_difference(group: Callable[..., ScoredGroup], tally: TokenTally) -> None:
    assert agreement([group([0, 1], [0, 1], [0, 1])], tally, 1).largest == ()
