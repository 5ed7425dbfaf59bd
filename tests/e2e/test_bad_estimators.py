"""Broken estimators and empty batches: the error message, and the exit of the command."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from expecting import check_printed, check_values

from rllm.cli.main import main
from rllm_core.plugins.registry import forget_in_process, records_in_process

MODULE = """
import numpy as np
from rllm_core import register_rllm_adv_estimator, register_rllm_grouping
from rllm_core.data.types import TrajectoryGroup

@register_rllm_adv_estimator("too_short")
def too_short(rewards, algorithm_config, **kwargs):
    return [group[:-1] for group in rewards], rewards

@register_rllm_adv_estimator("no_number")
def no_number(rewards, algorithm_config, **kwargs):
    advantages = [np.full(group.shape, np.nan) for group in rewards]
    return advantages, advantages

@register_rllm_adv_estimator("raises")
def raises(rewards, algorithm_config, **kwargs):
    return kwargs["gamma"]

@register_rllm_grouping("empty_groups")
def empty_groups(episodes, params):
    return [TrajectoryGroup(group_id="t:agent", trajectories=[])]
"""
QUICK = (
    "rllm.plugins.import_modules=[bad_estimators]",
    "rllm.trainer.total_batches=1",
    "rllm.trainer.test_freq=-1",
    "rllm.trainer.val_before_train=false",
    "rllm.rollout.n=2",
    "data.train_batch_size=2",
)


@pytest.fixture(autouse=True)
def _module_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "bad_estimators.py").write_text(MODULE)
    known = {(record.kind, record.name) for record in records_in_process()}
    yield
    sys.modules.pop("bad_estimators", None)
    for record in records_in_process():
        if (record.kind, record.name) not in known:
            forget_in_process(record.kind, record.name)


def last_metrics() -> dict[str, Any]:
    lines = Path("runs/rllm-training/guess-1/metrics.jsonl").read_text().splitlines()
    return next(line for line in map(json.loads, reversed(lines)) if "batch/episodes" in line)


@pytest.mark.parametrize(
    ("estimator", "code", "values"),
    [
        ("too_short", "bad-estimator-result", ["(1,)"]),
        ("no_number", "advantages-not-finite", ["4 advantages", "NaN", "float32"]),
        ("raises", "plugin-failed", ["KeyError: 'gamma' (bad_estimators.py, line"]),
    ],
)
def test_broken_estimator_stops_run(
    estimator: str, code: str, values: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "guess", "--estimator", estimator, *QUICK]) == 1
    said = capfd.readouterr().err
    check_printed(said, code, repr(estimator), *values)
    assert "Traceback" not in said


def test_role_without_groups_is_reported_and_others_train(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "guess", "--role-estimator", "judge=raises", *QUICK]) == 0
    said = capfd.readouterr().err
    check_values(said, "warning: ", "rllm.algorithm.estimator_map", "judge", "roles agent")
    assert "advantage/agent/mean" in last_metrics()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--grouping", "empty_groups"], "no_rewards"),
        (["--rejection", "group", "rllm.rejection_sample.min_trajs_per_group=3"], "all_groups_rejected"),
    ],
)
def test_step_with_empty_batch_is_skipped_with_reason(words: list[str], reason: str) -> None:
    assert main(["train", "guess", *words, *QUICK]) == 0
    metrics = last_metrics()
    assert metrics[f"batch/skipped_{reason}"] == 1
    assert metrics["train/weight_version"] == 0
    assert not any(name.startswith(("advantage/", "actor/")) for name in metrics)
