"""Runs that generate later rollout batches during an update of the service, with different delays in each run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tinker_in_process import RunningServer

from rllm.config.compose import compose
from rllm.config.layers import layer_from_keys
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.train_step import TrainStep
from rllm_core.plugins.registry import Registry
from rllm_tinker.backend import TinkerBackend
from rllm_tinker.client import Sampler
from rllm_tinker.state import read_state
from rllm_tinker_server.checkpoints import TinkerPath

STALENESS, STEPS = 2, 6
LONGEST = 0.05
"""Seconds of a delay at most. They disturb what runs when; nothing is asserted of how long anything takes."""
SETTINGS: dict[str, Any] = {
    "rllm.backend": "tinker",
    "rllm.env.name": "guess",
    "model.name": "tiny",
    "rllm.rollout.n": 4,
    "data.train_batch_size": 2,
    "training.num_minibatches": 2,
    "training.num_epochs": 1,
    "rllm.trainer.total_batches": STEPS,
    "rllm.trainer.val_before_train": False,
    "rllm.trainer.test_freq": -1,
    "rllm.trainer.save_freq": -1,
    "rllm.trainer.logger": [],
    "rllm.async_training.enable": True,
    "rllm.async_training.staleness_threshold": STALENESS,
}


@dataclass
class RunRecorder(Observer):
    """Result of a run."""

    stop_after: int | None
    loop: TrainingLoop | None = None
    weights: dict[str, Any] = field(default_factory=dict)
    """Weights of the adapter at the end, by name."""
    steps: list[TrainStep] = field(default_factory=list)

    def on_batch_end(self, step: TrainStep) -> None:
        self.steps.append(step)
        if len(self.steps) == self.stop_after:
            assert self.loop is not None
            self.loop.stop()

    @property
    def tokens(self) -> list[list[int]]:
        """Batches that each step trained on."""
        return [step.filled_batch.tokens.tolist() for step in self.steps]

    @property
    def tasks(self) -> list[set[str]]:
        return [{episode.task_id for episode in step.generated} for step in self.steps]


@pytest.fixture(scope="module")
def run(
    server: RunningServer, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., RunRecorder]]:
    """Make a run of that name, or continue it; `timing` is the seed of all delays."""
    sample, update = Sampler.sample, TinkerBackend.update

    def make(
        name: str, timing: int, *, resume: bool = False, stop_after: int | None = None, **settings: Any
    ) -> RunRecorder:
        delays = random.Random(timing)

        async def late_sample(self: Sampler, *arguments: Any) -> Any:
            await asyncio.sleep(delays.uniform(0, LONGEST))
            return await sample(self, *arguments)

        async def late_update(self: TinkerBackend, *arguments: Any) -> Any:
            await asyncio.sleep(delays.uniform(0, 3 * LONGEST))
            return await update(self, *arguments)

        patch.setattr(Sampler, "sample", late_sample)
        patch.setattr(TinkerBackend, "update", late_update)
        named = {"rllm.trainer.experiment_name": name, "tinker_base_url": server.url}
        plan = make_plan(compose(registry, [layer_from_keys({**SETTINGS, **named, **settings}, "the test")]), registry)
        tasks = {f"{split}_tasks": load_tasks(plan, split) for split in ("train", "val")}
        directory = RunDirectory.open(plan.config.rllm.trainer, overwrite=False, resume=resume)
        made = RunRecorder(stop_after)
        try:
            made.loop = TrainingLoop(plan, directory, **tasks, observers=[made], warn=lambda _: None, resume=resume)
            asyncio.run(made.loop.fit_async())
        finally:
            directory.close()
        path = read_state(directory.path / "checkpoints" / "latest" / "backend").path
        saved = server.service.checkpoints.directory(TinkerPath.parse(path))
        made.weights = load_file(saved / "adapter_model.safetensors")
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("runs"))
        patch.setenv("TINKER_API_KEY", "tml-test")
        patch.setattr("rllm_view.report.write_page", lambda *_: None)
        yield make


@pytest.fixture(scope="module")
def full_run(run: Callable[..., RunRecorder]) -> RunRecorder:
    """A run with fixed versions."""
    return run("whole", 0)


@pytest.mark.smoke
def test_pinned_run_depends_on_seed_but_not_timing(run: Callable[..., RunRecorder], full_run: RunRecorder) -> None:
    """Up to the rounding of sums, whose order follows from what is sampled at the same time."""
    other = run("other", 1)
    assert max(np.abs(weight).max() for name, weight in full_run.weights.items() if "lora_B" in name) > 1e-3
    assert other.tokens == full_run.tokens
    for name, weight in full_run.weights.items():
        np.testing.assert_allclose(other.weights[name], weight, atol=1e-5, rtol=0)


@pytest.mark.smoke
def test_fixed_version_batch_uses_oldest_allowed_version(full_run: RunRecorder) -> None:
    for number, step in enumerate(full_run.steps):
        batch = step.filled_batch
        assert set(batch.versions[batch.loss_mask].tolist()) == {max(0, number - STALENESS)}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["snapshot", "inflight"])
def test_latest_weights_keep_the_staleness_bound(run: Callable[..., RunRecorder], kind: str) -> None:
    made = run(kind, 0, **{"rllm.async_training.partial_rollout": True, "rollout_engine.weights": kind})
    assert [step.weight_version for step in made.steps] == list(range(1, STEPS + 1))
    for version, step in enumerate(made.steps):
        batch = step.filled_batch
        sampled = batch.versions[batch.loss_mask]
        assert version - STALENESS <= sampled.min() <= sampled.max() <= version


@pytest.mark.long
def test_a_resumed_run_continues_with_the_next_tasks(run: Callable[..., RunRecorder], full_run: RunRecorder) -> None:
    first, rest = run("one", 1, stop_after=3), run("one", 2, resume=True)
    assert first.tokens == full_run.tokens[:3]
    assert first.tasks + rest.tasks == full_run.tasks
    assert [step.weight_version for step in rest.steps] == [4, 5, 6]
    assert all(step.metrics["staleness/max"] <= STALENESS for step in rest.steps)
