"""Programs read the record of each kind of run: its losses are checked, and each trajectory has an account."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values
from recorded_runs import RUNS, RecordedRuns

from rllm_record.steps import StepFiles

UPDATES = {"synchronous": 8, "asynchronous": 8, "solver_judge": 16, "tree": 8}
"""Optimizer steps of runs with several in each step."""
ACCOUNTS = {
    "synchronous": "estimator: grpo",
    "asynchronous": "estimator: grpo",
    "agent": "estimator: grpo",
    "sft": "supervise",
    "prefer": "estimator: dpo",
    "solver_judge": "estimator: ",
    "tree": "estimator: tree",
}


@pytest.mark.smoke
@pytest.mark.usefixtures("with_view")
@pytest.mark.parametrize("name", RUNS)
def test_record_of_each_run_is_checked_and_explained(recorded_runs: RecordedRuns, name: str, rllm_here: Any) -> None:
    run = str(recorded_runs.path(name))
    checked = rllm_here("record", "check", run)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    check_values(checked.stdout, f": {UPDATES.get(name, 2)} optimizer steps of 2 steps")
    trained = [each.outcome for each in StepFiles(Path(run) / "record").outcomes(1)]
    uid = next(outcome.trajectory for outcome in trained if outcome.outcome == "trained")
    check_values(rllm_here("why", run, "1", uid).stdout, ACCOUNTS[name], "trained in step 1")


@pytest.mark.long
@pytest.mark.usefixtures("with_view")
def test_metrics_of_runs_without_rollouts_have_no_rewards(recorded_runs: RecordedRuns) -> None:
    for name in ("sft", "prefer"):
        lines = (recorded_runs.path(name) / "metrics.jsonl").read_text().splitlines()
        names = {key for line in map(json.loads, lines) for key in line}
        assert names
        assert not {key for key in names if key.startswith(("staleness", "advantage", "reward"))}


@pytest.mark.long
def test_asynchronous_tokens_are_at_most_one_update_old(recorded_runs: RecordedRuns) -> None:
    lines = (recorded_runs.path("asynchronous") / "metrics.jsonl").read_text().splitlines()
    stale = [line["staleness/max"] for line in map(json.loads, lines) if "actor/loss" in line]
    assert len(stale) == 2
    assert max(stale) <= 1
