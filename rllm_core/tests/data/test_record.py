"""The trace of trained tokens: what is none is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rllm_core.data.record import TokenTrace

WHOLE = dict.fromkeys(("row", "position", "epoch"), np.arange(3, dtype=np.int32))
REAL = dict.fromkeys(
    ("logprob", "entropy", "policy_part", "kl_part", "entropy_part"), np.array([-1.0, -0.5, 0.0], np.float32)
)


def _trace(**columns: Any) -> TokenTrace:
    return TokenTrace(**{**WHOLE, **REAL, **columns})


def test_a_trace_of_nothing_is_a_trace() -> None:
    empty = {name: column[:0] for name, column in (WHOLE | REAL).items()}
    assert _trace(**empty).row.size == 0


@pytest.mark.parametrize("name", [*WHOLE, *REAL])
def test_columns_of_a_trace_are_of_one_length(name: str) -> None:
    with pytest.raises(ValueError, match=r"of a token trace is (int|float)32 of shape \(\d,\); expected .* of shape"):
        _trace(**{name: (WHOLE | REAL)[name][:2]})


@pytest.mark.parametrize("name", [*WHOLE, *REAL])
def test_columns_of_a_trace_have_their_dtype(name: str) -> None:
    with pytest.raises(ValueError, match=f"column '{name}' of a token trace is float64 of shape"):
        _trace(**{name: np.zeros(3)})


def test_columns_of_a_trace_are_flat() -> None:
    with pytest.raises(ValueError, match=r"column 'row' of a token trace is int32 of shape \(3, 1\)"):
        _trace(row=np.zeros((3, 1), np.int32))
