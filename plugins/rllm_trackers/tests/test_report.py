"""The page and the picture that a run leaves behind, however it ends."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rllm_core.config.compose import compose
from rllm_core.config.layers import layers_from_overrides
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.planning.planner import make_plan
from rllm_core.plugins.registry import Registry
from rllm_core.runs.run_folder import PICTURE, PLUGINS, REPORT, RunFolder
from rllm_trackers.report import ReportTracker


@pytest.fixture
def tracker(folder: RunFolder, run: TrackedRun) -> ReportTracker:
    """Of a run with one step and the validations before and after it."""
    used = [{"kind": "estimator", "name": "grpo", "distribution": "rllm-core", "version": "<0.1>"}]
    (folder.path / PLUGINS).write_text(json.dumps(used))
    folder.log(-1, {"val/guess/pass@1": 0.125})
    folder.log(0, {"reward/agent/mean": 0.5, "val/guess/pass@1": 0.25})
    origins = {"rllm.rollout.n": "command line", "rllm.trainer.logger": "default"}
    return ReportTracker(replace(run, origins=origins), NoParams())


def test_it_has_the_last_validation_what_is_no_default_and_the_plugins(tracker: ReportTracker, run: TrackedRun) -> None:
    tracker.on_train_start(1, 0)
    tracker.close()

    page = (run.folder / REPORT).read_text(encoding="utf-8")
    assert "<td>val/guess/pass@1</td><td>0.2500</td>" in page
    assert "<td>rllm.rollout.n</td><td>8</td><td>command line</td>" in page
    assert "rllm.trainer.logger" not in page
    assert "<td>grpo</td><td>rllm-core</td><td>&lt;0.1&gt;</td>" in page
    assert "data:image/png;base64," in page
    assert (run.folder / PICTURE).read_bytes().startswith(b"\x89PNG")


def test_a_run_that_never_began_leaves_what_another_left_there(tracker: ReportTracker, run: TrackedRun) -> None:
    (run.folder / REPORT).write_text("of another run")

    tracker.close()

    assert (run.folder / REPORT).read_text() == "of another run"
    assert not (run.folder / PICTURE).exists()


@pytest.mark.parametrize("chosen", ["[console]", "[console,report]", "[]"])
def test_every_run_has_it_once_chosen_or_not(chosen: str) -> None:
    registry = Registry.load(allow=["rllm-local", "rllm-trackers"], environ={})
    words = ["rllm.backend=local", f"rllm.trainer.logger={chosen}"]

    plan = make_plan(compose(registry, layers_from_overrides(words)), registry)

    assert [entry.plugin.name for entry in plan.trackers].count("report") == 1
