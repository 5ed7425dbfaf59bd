"""How token losses become one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rllm_core.schema.algorithm_sections import AlgorithmSection
from rllm_core.updates.aggregation import token_weights

LONGEST = 16
Rows = list[list[float]]


def _sampled(rows: Rows) -> Rows:
    return [row for row in rows if row]


NAIVE: dict[str, Callable[[Rows], float]] = {
    "token-mean": lambda rows: float(np.mean(np.concatenate(rows))),
    "token-sum": lambda rows: float(np.sum(np.concatenate(rows))),
    "seq-mean-token-sum": lambda rows: float(np.mean([np.sum(row) for row in _sampled(rows)])),
    "seq-mean-token-mean": lambda rows: float(np.mean([np.mean(row) for row in _sampled(rows)])),
    "seq-mean-token-sum-norm": lambda rows: float(np.mean([np.sum(row) / LONGEST for row in _sampled(rows)])),
}


def _group(row: list[float]) -> int:
    return len(row) % 2


def _prompt_mean(rows: Rows) -> float:
    groups = [[loss for row in rows if _group(row) == group for loss in row] for group in (0, 1)]
    return float(np.mean([np.mean(group) for group in groups if group]))


NAIVE["prompt-mean"] = _prompt_mean
LOSS = st.floats(-100, 100, width=32)
ROWS = st.lists(st.lists(LOSS, max_size=6), max_size=6).filter(any)


def _weights(mode: str, rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    groups = np.array([_group(row) for row in rows], np.int64)
    return token_weights(mode, np.array([len(row) for row in rows], np.int64), LONGEST, groups)


def test_every_mode_of_the_config_is_tested_here() -> None:
    assert set(get_args(AlgorithmSection.model_fields["loss_agg_mode"].annotation)) == set(NAIVE)


@pytest.mark.parametrize("mode", NAIVE)
@given(rows=ROWS)
def test_weighted_losses_add_up_to_the_definition(mode: str, rows: Rows) -> None:
    weights = _weights(mode, rows)
    losses = np.concatenate(rows)
    assert weights.dtype == np.float32
    total = float(weights.astype(np.float64) @ losses)
    scale = float(weights.astype(np.float64) @ np.abs(losses))
    assert total == pytest.approx(NAIVE[mode](rows), abs=1e-6 * scale + 1e-9)


def test_nothing_sampled_gives_no_weights_and_no_warning() -> None:
    for rows in ([], [[]], [[], []]):
        for mode in NAIVE:
            assert _weights(mode, rows).shape == (0,)


def test_an_unknown_mode_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown aggregation 'mean'"):
        token_weights("mean", np.array([1]), LONGEST)
