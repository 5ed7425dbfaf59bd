"""What is recorded of a run: what cannot be is refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any, get_args

import numpy as np
import pytest

from rllm_core.data.record import Call, CallKey, EpisodeRecord, Fate, FateName, TokenTrace
from rllm_core.data.types import TerminationReason
from rllm_core.data.version_spans import VersionSpan

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
    with pytest.raises(ValueError, match=r"of a token trace is (int|float)32 of shape \(\d,\); expected .* of shape"):
        _trace(**{name: (WHOLE | REAL)[name][:2]})


@pytest.mark.parametrize("name", [*WHOLE, *REAL])
def test_columns_of_a_trace_have_their_dtype(name: str) -> None:
    with pytest.raises(ValueError, match=f"column '{name}' of a token trace is float64 of shape"):
        _trace(**{name: np.zeros(3)})


def test_columns_of_a_trace_are_flat() -> None:
    with pytest.raises(ValueError, match=r"column 'row' of a token trace is int32 of shape \(3, 1\)"):
        _trace(row=np.zeros((3, 1), np.int32))


KEY = CallKey(run="demo", attempt="t:0", retry=0, parent=None, sibling=0)


def _call(**fields: Any) -> Call:
    given: dict[str, Any] = {
        "key": KEY,
        "prompt_digest": "d0",
        "new_ids": np.array([1, 2], np.int32),
        "response_ids": np.array([3, 4, 5], np.int32),
        "logprobs": np.array([-1.0, np.nan, -0.5], np.float32),
        "weight_version": 4,
        "finish_reason": "stop",
        "started": 1.7e9,
        "seconds": 0.25,
        "parameters": {"temperature": 1.0},
    }
    return Call(**(given | fields))


def _fate(**fields: Any) -> Fate:
    given: dict[str, Any] = {
        "step": 3,
        "trajectory": "t:0/agent",
        "fate": "trained",
        "rule": "",
        "numbers": {},
        "group": "t:agent",
        "peers": ("t:1/agent",),
    }
    return Fate(**(given | fields))


def test_a_call_may_have_tokens_of_several_weight_versions() -> None:
    spans = (VersionSpan(5, 1), VersionSpan(4, 2))
    assert _call(version_spans=spans).version_spans == spans
    assert _call().version_spans == ()


def test_a_call_has_a_log_prob_per_token() -> None:
    with pytest.raises(ValueError, match="2 log-probs for 3 response tokens"):
        _call(logprobs=np.zeros(2, np.float32))


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([VersionSpan(4, 2)], r"version spans of \[2\] tokens, none empty, must add up to a response of 3"),
        ([VersionSpan(5, 3)], "weight_version is 4, and the oldest version span is of version 5"),
    ],
)
def test_version_spans_of_a_call_cover_its_response(spans: list[VersionSpan], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _call(version_spans=tuple(spans))


def test_keys_of_calls_are_compared_and_looked_up_by_what_they_say() -> None:
    again = CallKey(run="demo", attempt="t:0", retry=0, parent=None, sibling=0)
    other = CallKey(run="demo", attempt="t:0", retry=0, parent=None, sibling=1)
    assert {KEY: 1}[again] == 1
    assert other != KEY


@pytest.mark.parametrize("fate", get_args(FateName))
def test_there_are_four_fates(fate: FateName) -> None:
    assert _fate(fate=fate).fate == fate
    assert len(get_args(FateName)) == 4


@pytest.mark.parametrize("fate", ["clipped", "Trained", "", None])
def test_an_unknown_fate_is_refused(fate: Any) -> None:
    with pytest.raises(ValueError, match="there are trained, waiting, dropped, masked"):
        _fate(fate=fate)


def test_what_is_recorded_stays_as_it_is() -> None:
    episode = EpisodeRecord(
        uid="t:0",
        task_id="t",
        trajectories={"t:0/agent": (KEY,)},
        rewards_given={"t:0/agent": None},
        rewards_used={"t:0/agent": 0.0},
        components={},
        ending=TerminationReason.ENV_DONE,
        error="",
        tries=1,
    )
    for record, name in ((episode, "tries"), (KEY, "sibling"), (_call(), "seconds"), (_fate(), "fate")):
        with pytest.raises(FrozenInstanceError):
            setattr(record, name, None)
