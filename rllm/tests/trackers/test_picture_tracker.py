"""The picture that a run leaves behind, however it ends."""

from __future__ import annotations

import pytest

from rllm.config.compose import compose
from rllm.config.layers import layers_from_overrides
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import PICTURE, RunDirectory
from rllm.trackers.picture_tracker import PictureTracker
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.plugins.registry import Registry


@pytest.fixture
def tracker(directory: RunDirectory, run: TrackedRun) -> PictureTracker:
    """Of a run with one step and the validations before and after it."""
    directory.log(-1, {"val/guess/pass@1": 0.125})
    directory.log(0, {"reward/agent/mean": 0.5, "val/guess/pass@1": 0.25})
    return PictureTracker(run, NoParams())


def test_a_run_that_began_leaves_a_picture(tracker: PictureTracker, run: TrackedRun) -> None:
    tracker.on_train_start(1, 0)
    tracker.close()

    assert (run.directory / PICTURE).read_bytes().startswith(b"\x89PNG")


def test_a_run_that_never_began_leaves_what_another_left_there(tracker: PictureTracker, run: TrackedRun) -> None:
    (run.directory / PICTURE).write_text("of another run")

    tracker.close()

    assert (run.directory / PICTURE).read_text() == "of another run"


@pytest.mark.parametrize("chosen", ["[console]", "[console,picture]", "[]"])
def test_every_run_has_it_once_chosen_or_not(chosen: str) -> None:
    registry = Registry.load(allow=["rllm-local", "rllm"], environ={})
    words = ["rllm.backend=local", f"rllm.trainer.logger={chosen}"]

    plan = make_plan(compose(registry, layers_from_overrides(words)), registry)

    assert [entry.plugin.name for entry in plan.trackers].count("picture") == 1
