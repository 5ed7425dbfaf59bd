"""Slopes of the losses are their derivatives, and large log-ratios stay finite."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rllm.preferences.losses import Numbers, PreferenceLoss, dpo, ipo, kto
from rllm.preferences.options import PreferParams

RATIOS = np.array([[0.3, -0.2], [-1.0, 2.0], [4.0, 4.0]])
LENGTHS = np.array([[3, 1], [2, 5], [1, 1]])
GOOD = np.array([True, False, True, True, False, False])
LOSSES: dict[str, Callable[[Numbers], PreferenceLoss]] = {
    "dpo": lambda ratios: dpo(ratios, 0.7),
    "ipo": lambda ratios: ipo(ratios, LENGTHS, 0.7),
    "kto": lambda ratios: kto(
        ratios.ravel(), GOOD, 0.5, PreferParams(beta=0.7, desirable_weight=2, undesirable_weight=3)
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_slopes_are_the_derivatives_of_the_mean(name: str) -> None:
    loss, step = LOSSES[name], 1e-5
    for place in np.ndindex(RATIOS.shape):
        moved = [RATIOS.copy(), RATIOS.copy()]
        moved[0][place] -= step
        moved[1][place] += step
        below, above = (loss(ratios).losses.sum() for ratios in moved)
        expected = (above - below) / (2 * step) / loss(RATIOS).losses.size
        slopes = loss(RATIOS).slopes.reshape(RATIOS.shape)
        assert slopes[place] == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("name", LOSSES)
def test_large_log_ratios_stay_finite(name: str) -> None:
    with np.errstate(all="raise", under="ignore"):
        found = LOSSES[name](RATIOS * 1e4)
    assert np.isfinite(found.losses).all()
    assert np.isfinite(found.slopes).all()


def test_pair_without_difference_has_the_loss_log_two() -> None:
    assert dpo(np.zeros((1, 2)), 0.1).losses.tolist() == [pytest.approx(np.log(2))]
    assert dpo(np.zeros((1, 2)), 0.1).slopes.tolist() == [[pytest.approx(-0.05), pytest.approx(0.05)]]
