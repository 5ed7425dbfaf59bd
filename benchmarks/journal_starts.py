"""One start of a run of `guess` that reports what it does, in a process that may be killed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm.config.compose import compose
from rllm.config.layers import layer_from_dotted
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm_core.contracts.engine import Completion, EngineWrapper, RolloutEngine, SamplingParams
from rllm_core.contracts.observer import Observer, ObserverPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.contracts.train_step import TrainStep
from rllm_core.plugins.registry import Registry

STEPS, SAVED_EVERY = 8, 2
SETTINGS: dict[str, Any] = {
    "rllm.env.name": "guess",
    "rllm.async_training.enable": True,
    "rllm.rollout.n": 2,
    "rllm.trainer.total_batches": STEPS,
    "rllm.trainer.save_freq": SAVED_EVERY,
    "rllm.trainer.val_before_train": False,
    "rllm.trainer.test_freq": -1,
    "rllm.trainer.logger": [],
    "rllm.trainer.observers": ["said", "journal"],
    "rllm.record": "off",
    "data.train_batch_size": 4,
}
IMPORTED_LATE = ("transformers.models.llama.modeling_llama", "duckdb", "PIL.Image")
SAID = "said.jsonl"
"""A file with a line for each sampled call (its seed) and each step (its rollouts)."""


class Listening(EngineWrapper):
    """The engine under the journal. It reports the seed of each call that it samples."""

    def __init__(self, engine: RolloutEngine, said: Said) -> None:
        super().__init__(engine)
        self._said = said

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        completion = await self.inner.generate(prompt_ids, sampling, session=session)
        self._said.say({"sampled": sampling.seed, "task_batch": sampling.task_batch})
        return completion


class Said(Observer):
    """Writes a line for each event of a start. It writes the line at once, so the line survives the process."""

    def wrap_engine(self, engine: RolloutEngine, run: TrackedRun) -> RolloutEngine:
        self._file = os.open(run.directory / SAID, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return Listening(engine, self)

    def on_batch_end(self, step: TrainStep) -> None:
        rollouts = [episode.id for episode in step.generated]
        self.say(
            {"step": step.global_step, "tasks": [step.task_batch, rollouts], "stale": step.metrics["staleness/max"]}
        )

    def say(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


def fit(registry: Registry, settings: dict[str, Any]) -> None:
    """Begin or continue the run."""
    plan = make_plan(compose(registry, [layer_from_dotted(settings, "the benchmark")]), registry)
    tasks = {f"{split}_tasks": load_tasks(plan, split) for split in ("train", "val")}
    directory = RunDirectory.open(plan.config.rllm.trainer, resume=True)
    TrainingLoop(plan, directory, **tasks, resume=True, warn=lambda _: None).fit()


def registry_of_starts() -> Registry:
    """Return the registry with the observer. Import the modules of a run now, so that a start is short."""
    found = Registry.load()
    found.add(ObserverPlugin(name="said", summary="For the benchmark.", params=NoParams, load=lambda: lambda _: Said()))
    for entry in make_plan(compose(found, [layer_from_dotted(SETTINGS, "the benchmark")]), found).registered():
        entry.load()
    for name in IMPORTED_LATE:
        import_module(name)
    return found
