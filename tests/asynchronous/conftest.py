"""Runs of a scripted world in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import scripted_world
import virtual_time

from rllm.config.compose import compose
from rllm.config.layers import layer_from_keys
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm.planning.preflight import check_to_train
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.train_step import TrainStep
from rllm_core.plugins.registry import Registry

SMALL: dict[str, Any] = {
    "rllm.backend": "scripted",
    "rllm.env.name": "letters",
    "rllm.rollout.n": 3,
    "rllm.trainer.total_batches": 6,
    "rllm.trainer.val_before_train": False,
    "rllm.trainer.test_freq": -1,
    "rllm.trainer.save_freq": -1,
    "rllm.trainer.logger": [],
    "rllm.record": "off",
    "data.train_batch_size": 4,
}


@dataclass
class Made(Observer):
    """The result of a run."""

    directory: Path
    steps: list[TrainStep] = field(default_factory=list)
    events: list[tuple[Any, ...]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    elapsed: float = 0.0
    """Seconds of the real clock."""
    loop: TrainingLoop | None = None
    stop_after: int | None = None

    def on_epoch_start(self, epoch: int) -> None:
        self.events.append(("epoch start", epoch))

    def on_batch_start(self, step: TrainStep) -> None:
        self.events.append(("start", step.global_step))

    def on_batch_end(self, step: TrainStep) -> None:
        self.steps.append(step)
        self.events.append(("end", step.global_step))
        if self.stop_after is not None and len(self.steps) == self.stop_after:
            assert self.loop is not None
            self.loop.stop()

    def on_epoch_end(self, epoch: int) -> None:
        self.events.append(("epoch end", epoch))

    @property
    def backend(self) -> scripted_world.ScriptedBackend:
        assert self._backend is not None
        return self._backend

    _backend: scripted_world.ScriptedBackend | None = None

    @property
    def digest(self) -> str:
        return self.backend.weights


Run = Callable[..., Made]
MakePlan = Callable[..., RunPlan]


@pytest.fixture(scope="session")
def installed() -> Registry:
    return scripted_world.registry()


@pytest.fixture
def world(installed: Registry) -> Registry:
    """Return a copy of the registry. Tests may add to it."""
    return replace(installed, _registered={kind: [*found] for kind, found in installed._registered.items()})


@pytest.fixture(autouse=True)
def _no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the report, which takes more time than a scripted run."""
    monkeypatch.setattr("rllm_view.report.write_page", lambda *_: None)


@pytest.fixture
def planned(world: Registry) -> MakePlan:
    def make(settings: Mapping[str, Any]) -> RunPlan:
        return make_plan(compose(world, [layer_from_keys({**SMALL, **settings}, "the test")]), world)

    return make


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: MakePlan) -> Run:
    """Make a run with these settings in its own directory.

    `name` begins or continues a named run. After `cut_after` seconds the run is cut off, and nothing more is saved.
    """
    monkeypatch.chdir(tmp_path)

    def make(
        settings: Mapping[str, Any],
        name: str = "one",
        resume: bool = False,
        stop_after: int | None = None,
        cut_after: float | None = None,
    ) -> Made:
        plan = planned({"rllm.trainer.experiment_name": name, **settings})
        tasks = {f"{split}_tasks": load_tasks(plan, split) for split in ("train", "val")}
        check_to_train(plan, **tasks)
        directory = RunDirectory.open(plan.config.rllm.trainer, overwrite=not resume, resume=resume)
        made, begun = Made(directory.path, stop_after=stop_after), time.monotonic()
        try:
            made.loop = loop = TrainingLoop(
                plan, directory, **tasks, observers=[made], warn=made.warnings.append, resume=resume
            )

            async def fit() -> float:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(loop.fit_async(), cut_after)
                return asyncio.get_running_loop().time()

            made.seconds = virtual_time.run(fit())
        finally:
            directory.close()
        made._backend = scripted_world.ScriptedBackend.last
        made.elapsed = time.monotonic() - begun
        return made

    return make


@pytest.fixture(scope="session")
def whole_runs() -> dict[str, Made]:
    return {}


@pytest.fixture
def whole(run: Run, whole_runs: dict[str, Made]) -> Run:
    """Return the undisturbed run with these settings, which is made once."""

    def make(settings: Mapping[str, Any]) -> Made:
        key = repr(sorted(settings.items()))
        if key not in whole_runs:
            whole_runs[key] = run(settings, "whole")
        return whole_runs[key]

    return make
