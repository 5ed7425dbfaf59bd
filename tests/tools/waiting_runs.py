"""Asynchronous runs on the backend `local`, in an environment that waits at random: ``python waiting_runs.py``.

Prints JSON: a name for each run, with the digest of its last weights and the staleness of its tokens. It needs its
own process, because MKL reads its settings once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllm.config.compose import compose
from rllm.config.layers import layer_from_keys
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm_core.contracts.environment import Environment, EnvironmentPlugin, Outcome
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Task
from rllm_core.plugins.registry import Registry

STEPS, STALENESS, TURNS = 6, 2, 3
SETTINGS = {
    "rllm.env.name": "waiting",
    "rllm.async_training.enable": True,
    "rllm.async_training.staleness_threshold": STALENESS,
    "rllm.rollout.n": 4,
    "rllm.rollout.n_val": 1,
    "rllm.trainer.output_dir": "runs",
    "rllm.trainer.total_batches": STEPS,
    "rllm.trainer.val_before_train": False,
    "rllm.trainer.test_freq": -1,
    "rllm.trainer.logger": [],
    "rllm.record": "off",
    "data.train_batch_size": 4,
    "data.max_response_length": 6,
    "training.learning_rate": 0.01,
}
LATEST = {"rllm.async_training.partial_rollout": True}
SYNCHRONOUS = {"rllm.async_training.staleness_threshold": 0}
ONE_PROCESS = {"local.training_process": False}


class Waiting(Environment):
    """A few turns, rewarded by the letters of the responses. Answers take a random time."""

    def __init__(self, params: NoParams) -> None:
        self._turns = 0

    @classmethod
    def tasks(cls, split: Any, params: NoParams) -> Sequence[Task]:
        return [Task(id=f"{split}{number}", data={"number": number}) for number in range(12)]

    async def reset(self, task: Mapping[str, Any]) -> str:
        await _wait()
        return f"number {task['number']}"

    async def step(self, action: str) -> Outcome:
        await _wait()
        self._turns += 1
        reward = float(sum(map(ord, action)) % 3)
        return Outcome(observation=f"number {len(action)}", reward=reward, done=self._turns == TURNS)


async def _wait() -> None:
    await asyncio.sleep(random.lognormvariate(0, 1.5) / 1000)


@dataclass
class Stalenesses(Observer):
    """Stores the largest staleness of each step, and stops after some steps."""

    stop_after: int
    seen: list[float] = field(default_factory=list)
    mixed: bool = False
    """True if a response has tokens of several versions."""
    loop: TrainingLoop | None = None

    def on_batch_end(self, step: TrainStep) -> None:
        self.seen.append(step.metrics["staleness/max"])
        steps = [each for episode in step.generated for each in episode.trajectories[0].steps]
        self.mixed |= len({each.weight_version for each in steps}) > 1
        if len(self.seen) == self.stop_after:
            assert self.loop is not None
            self.loop.stop()


def run(found: Registry, name: str, changes: Mapping[str, Any], *, steps: int, resume: bool) -> dict[str, Any]:
    """Make or continue a run, and return its result."""
    settings = {**SETTINGS, **changes, "rllm.trainer.experiment_name": name}
    plan = make_plan(compose(found, [layer_from_keys(settings, "the test")]), found)
    tasks = {f"{split}_tasks": load_tasks(plan, split) for split in ("train", "val")}
    directory = RunDirectory.open(plan.config.rllm.trainer, overwrite=not resume, resume=resume)
    observer = Stalenesses(steps)
    try:
        observer.loop = TrainingLoop(plan, directory, **tasks, observers=[observer], resume=resume)
        observer.loop.fit()
        weights = (directory.checkpoints / "latest" / "backend" / "model" / "model.safetensors").read_bytes()
    finally:
        directory.close()
    return {"digest": hashlib.sha256(weights).hexdigest(), "stale": observer.seen, "mixed": observer.mixed}


def _slots(count: int) -> dict[str, Any]:
    return {"rllm.workflow.n_parallel_tasks": count}


def registry() -> Registry:
    """Return the installed plugins with the environment."""
    found = Registry.load()
    found.add(
        EnvironmentPlugin(
            name="waiting",
            summary="For tests.",
            load=lambda: Waiting,
            defaults={"rllm.workflow.name": "multi_turn_workflow"},
        )
    )
    return found


def main() -> None:
    """Make all runs and print their results. Only the first run has a training process."""
    found = registry()
    made = {"first": run(found, "first", {}, steps=STEPS, resume=False)}
    made["second"] = run(found, "second", ONE_PROCESS | _slots(7), steps=STEPS, resume=False)
    for count in (2, 64):
        made[f"synchronous {count}"] = run(found, f"sync{count}", SYNCHRONOUS | _slots(count), steps=2, resume=False)
    made["stopped"] = run(found, "stopped", ONE_PROCESS, steps=2, resume=False)
    made["resumed"] = run(found, "stopped", ONE_PROCESS | _slots(3), steps=STEPS, resume=True)
    made["latest"] = run(found, "latest", ONE_PROCESS | LATEST, steps=STEPS, resume=False)
    json.dump(made, sys.stdout)


if __name__ == "__main__":
    main()
