"""`rllm record check`: the largest difference between the log-probs of sampler and trainer."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rllm_record.check.chain import CheckReport, RecordedSteps, compare_logprobs

STEPS = [
    {"segment_start": 0, "response_start": 2, "end": 4, "weight_version": 3, "version_spans": None},
    {
        "segment_start": 0,
        "response_start": 5,
        "end": 7,
        "weight_version": 2,
        "version_spans": [{"version": 2, "tokens": 1}, {"version": 3, "tokens": 1}],
    },
]
RECORDED = cast(RecordedSteps, {8: {"uid": ({}, {"steps": STEPS})}})


def trace(**changes: Any) -> dict[str, Any]:
    return {
        "trajectory": "uid",
        "segment": 0,
        "rollout_step": 8,
        "optimizer_step": 0,
        "positions": [2, 3, 5, 6],
        "logprob": [-1.0, -2.0, -9.0, -3.0],
        "rollout_logprob": [-1.0, -2.0, -1.0, -3.25],
    } | changes


def test_only_tokens_of_the_same_weights_are_compared() -> None:
    report = CheckReport()
    compare_logprobs([trace()], 3, RECORDED, report)
    assert (report.compared_logprobs, report.largest_logprob_difference) == (3, 0.25)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer_step": 1},
        {"trajectory": "other"},
        {"rollout_logprob": None},
        {"rollout_logprob": [float("nan")] * 4},
    ],
)
def test_rows_without_both_logprobs_are_skipped(changes: dict[str, Any]) -> None:
    report = CheckReport()
    compare_logprobs([trace(**changes)], 3, RECORDED, report)
    assert report.compared_logprobs == 0
