"""Runs with each sampler and stateful estimators, synchronous and ahead of training: stopped, cut off and resumed, they
train on the same."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error
from scripted_world import ahead

from rllm_core.contracts.params import NoParams
from rllm_core.contracts.sampler import Sampler, SamplerPlugin
from rllm_core.errors import CheckpointError, PluginError
from rllm_core.plugins.registry import Registry

SAMPLERS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "difficulty": {"memory": 0.0, "easy": 0.6, "hard": 0.3},
    "thompson": {"memory": 0.0},
    "drop_solved": {"bound": 0.6},
    "levels": {"key": "number", "solved": 0.3, "tasks": 1},
    "mixed": {},
}
DYNAMIC = {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": "dynamic"}
STATEFUL = {"rllm.algorithm.adv_estimator": {"name": "mix", "parts": ["rae", "spo"]}}


def sampling(name: str, **more: Any) -> dict[str, Any]:
    return {"rllm.sampler": {"name": name, **SAMPLERS[name]}, **STATEFUL, **more}


def drawn(*runs: Any) -> list[list[str]]:
    """Return the tasks of each step, and the sampler's metrics."""
    return [
        [task.id for task in step.tasks]
        + [f"{key} {value}" for key, value in step.metrics.items() if key.startswith("sampler/")]
        for made in runs
        for step in made.steps
    ]


@pytest.mark.long
@pytest.mark.parametrize(("name", "more"), [("difficulty", {}), ("levels", DYNAMIC)])
def test_a_stopped_run_ends_as_an_undisturbed_one(run: Any, whole: Any, name: str, more: dict[str, Any]) -> None:
    settings = sampling(name, **more)
    first, rest = run(settings, stop_after=3), run(settings, resume=True)
    assert drawn(first, rest) == drawn(whole(settings))
    assert rest.digest == whole(settings).digest


@pytest.mark.parametrize(
    ("name", "mode"), [("thompson", ahead(2)), *(pytest.param(name, {}, marks=pytest.mark.long) for name in SAMPLERS)]
)
def test_interrupted_run_ends_as_an_undisturbed_run(run: Any, whole: Any, name: str, mode: dict[str, Any]) -> None:
    """With fixed-version weights, the recorded model calls of unfinished batches are replayed."""
    settings = sampling(name, **{"rllm.trainer.save_freq": 2}, **mode)
    expected = whole(settings)
    cut = run(settings, cut_after=expected.seconds * 0.7)
    assert 2 < len(cut.steps) < 6
    rest = run(settings, resume=True)
    assert drawn(rest) == drawn(expected)[-len(rest.steps) :]
    assert rest.digest == expected.digest


@pytest.mark.parametrize(("name", "partial"), [("difficulty", False), ("levels", True)])
def test_batches_drawn_ahead_keep_tasks_after_resume(run: Any, name: str, partial: bool) -> None:
    settings = {**sampling(name), **ahead(2, partial)}
    first, rest = run(settings, stop_after=3), run(settings, resume=True)
    before = first.loop._draws
    pending = [entry.positions for entry in before._pending.values()]
    assert len(pending) == 2
    assert [[int(task.id.removeprefix("train")) for task in step.tasks] for step in rest.steps[:2]] == pending


@pytest.mark.parametrize("name", ["thompson", pytest.param("levels", marks=pytest.mark.long)])
def test_timing_changes_no_draw_of_fixed_version_runs(run: Any, name: str) -> None:
    settings = {**sampling(name), **ahead(2)}
    one, other = run(settings, "one"), run({**settings, "script.timing": 5}, "other")
    assert drawn(one) == drawn(other)
    assert one.digest == other.digest


def test_a_different_sampler_cannot_continue(run: Any) -> None:
    run(sampling("uniform"), stop_after=2)
    with expect_error(CheckpointError, "run-changed", "rllm/thompson", "--sampler rllm/uniform"):
        run(sampling("thompson"), resume=True)


@pytest.mark.parametrize(
    ("positions", "value"),
    [([0, 0], "task 0 twice"), ([12], "position 12"), ([-1], "position -1"), ([], "0 tasks"), (range(5), "5 tasks"),
     (["a"], "['a']"), (None, "None")],
)  # fmt: skip
def test_unusable_draws_end_the_run(run: Any, world: Registry, positions: Any, value: str) -> None:
    class Bad(Sampler):
        def __init__(self, params: NoParams, setup: Any) -> None:
            pass

        def draw(self, batch: int) -> Any:
            return positions

    check_rejected(run, world, Bad, value)


def test_a_sampler_of_another_class_is_rejected(run: Any, world: Registry) -> None:
    check_rejected(run, world, lambda params, setup: 3, "makes 3")


def check_rejected(run: Any, world: Registry, sampler: Any, value: str) -> None:
    world.add(SamplerPlugin(name="bad", summary="For tests.", load=lambda: sampler))
    with expect_error(PluginError, "bad-sampler-result", value):
        run({"rllm.sampler": "bad"})
