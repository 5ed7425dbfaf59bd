"""What is recorded of a run: what cannot be is refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
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
def test_columns_of_a_trace_are_of_one_length(name: str) -> None:
    with pytest.raises(ValueError, match=r"(int|float)32 .*\(\d,\).*(int|float)32 .*\(\d,\)"):
        _trace(**{name: (WHOLE | REAL)[name][:2]})


@pytest.mark.parametrize("name", [*WHOLE, *REAL])
def test_columns_of_a_trace_have_their_dtype(name: str) -> None:
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


@pytest.mark.parametrize("outcome", get_args(OutcomeName))
def test_there_are_four_outcomes(outcome: OutcomeName) -> None:
    assert _outcome(outcome=outcome).outcome == outcome
    assert len(get_args(OutcomeName)) == 4


@pytest.mark.parametrize("outcome", ["clipped", "Trained", "", None])
def test_an_unknown_outcome_is_refused(outcome: Any) -> None:
    with pytest.raises(ValueError, match="trained, waiting, dropped, masked"):
        _outcome(outcome=outcome)


def test_an_outcome_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        _outcome().outcome = "masked"  # type: ignore[misc]
