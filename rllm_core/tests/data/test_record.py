"""What is recorded of a run: what cannot be is refused."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from rllm_core.data.record import Outcome, OutcomeName, TokenTrace

WHOLE = dict.fromkeys(("row", "position", "epoch", "optimizer_step"), np.arange(3, dtype=np.int32))
REAL = dict.fromkeys(
    ("logprob", "entropy", "weight", "clipped", "policy_part", "kl_part", "entropy_part"),
    np.array([-1.0, -0.5, 0.0], np.float32),
)


def _trace(**columns: Any) -> TokenTrace:
    return TokenTrace(**{**WHOLE, **REAL, **columns})


def test_a_trace_of_nothing_is_a_trace() -> None:
    empty = {name: column[:0] for name, column in (WHOLE | REAL).items()}
    assert _trace(**empty).row.size == 0


@pytest.mark.parametrize("name", [*WHOLE, *REAL])
def test_trace_columns_have_their_length_and_dtype(name: str) -> None:
    with pytest.raises(ValueError, match=r"(int|float)32 .*\(\d,\).*(int|float)32 .*\(\d,\)"):
        _trace(**{name: (WHOLE | REAL)[name][:2]})
    with pytest.raises(ValueError, match=f"'{name}'.*float64.*32"):
        _trace(**{name: np.zeros(3)})


def test_columns_of_a_trace_are_flat() -> None:
    with pytest.raises(ValueError, match=r"'row'.*int32.*\(3, 1\)"):
        _trace(row=np.zeros((3, 1), np.int32))


def _outcome(**fields: Any) -> Outcome:
    given: dict[str, Any] = {
        "step": 3,
        "trajectory": "t:0/agent",
        "outcome": "trained",
        "rule": "",
        "numbers": {},
        "group": "t:agent",
        "peers": ("t:1/agent",),
    }
    return Outcome(**(given | fields))


def test_only_four_outcomes_are_accepted() -> None:
    assert [_outcome(outcome=outcome).outcome for outcome in get_args(OutcomeName)] == [*get_args(OutcomeName)]
    for outcome in ("clipped", "Trained", "", None):
        with pytest.raises(ValueError, match="trained, waiting, dropped, masked"):
            _outcome(outcome=outcome)
