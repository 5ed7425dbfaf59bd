"""Gains and costs of rollouts ahead of training on the backend `local`.

    python benchmarks/async.py [NAME ...]           # time of a step. By default, all names
    python benchmarks/async.py learning             # results of training: synchronous and S of 1, 2 and 4, three seeds
    python benchmarks/async.py learning --ahead 2 --seeds 0 -- training.beta2=0.999     # overrides for all runs

NAME is `waiting`, `guess` or `tinker`:

- `waiting` is an environment that answers after 0.3 s (median of a lognormal). The value is seconds per step, as a
  ratio to a synchronous run. Waiting dominates, so the ratios are valid on a busy machine too.
- `guess` is the demo, which computes all the time. The values are CPU seconds of a step in the process that generates
  and in the process that trains. The ratio shows how much faster the slower one is than the single process of a
  synchronous run. Two free cores give this gain. The ratio of seconds next to it is valid only on a quiet machine.
- `tinker` is the demo on the backend `tinker` with its own server. The server trains and also samples.

Each line shows the largest staleness of the run.

`learning` trains `guess` on older tokens. For each setting and seed, it prints the share of games solved, and the step
that reaches 95 %. Validations every 20 steps give both values. They do not change the training.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

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

MEDIAN, SIGMA, TURNS = 0.3, 0.75, 3
STEPS, SKIPPED = 24, 6
"""Steps of each run. The first ones are not counted, because batches ahead begin together there."""
ALWAYS: dict[str, Any] = {
    "rllm.trainer.total_batches": STEPS,
    "rllm.trainer.val_before_train": False,
    "rllm.trainer.test_freq": -1,
    "rllm.trainer.logger": [],
    "rllm.record": "off",
}
SIZES: dict[str, dict[str, Any]] = {
    "waiting": {"data.train_batch_size": 4, "rllm.rollout.n": 4, "data.max_response_length": 6},
    "guess": {},
    "tinker": {"rllm.backend": "tinker", "tinker_base_url": "local"},
}


def seconds_of_answer(rollout: int, turn: int) -> float:
    """Return the seconds of an answer of `waiting`. They depend only on the rollout's number and the turn."""
    return MEDIAN * random.Random(f"{rollout} {turn}").lognormvariate(0, SIGMA)


class Waiting(Environment):
    """An environment with a few turns that answers slowly."""

    numbers = itertools.count()
    """Numbers of the rollouts of a run, which begin in order."""

    def __init__(self, params: NoParams) -> None:
        self._turns, self._number = 0, next(Waiting.numbers)

    @classmethod
    def tasks(cls, split: Any, params: NoParams) -> Sequence[Task]:
        return [Task(id=f"{split}{number}", data={"number": number}) for number in range(16)]

    def reset(self, task: Mapping[str, Any]) -> str:
        return f"number {task['number']}"

    async def step(self, action: str) -> Outcome:
        await asyncio.sleep(seconds_of_answer(self._number, self._turns))
        self._turns += 1
        return Outcome(observation="go on", reward=float(len(action) % 3), done=self._turns == TURNS)


@dataclass(frozen=True)
class Times:
    """Wall time and CPU time in seconds."""

    wall: float
    here: float
    """CPU of this process."""
    child: float
    """CPU of the process that trains. 0 if this process trains."""

    @property
    def slower(self) -> float:
        return max(self.here, self.child)

    def over(self, count: int) -> Times:
        return Times(self.wall / count, self.here / count, self.child / count)


@dataclass
class Clock(Observer):
    """Times and staleness after each step."""

    ends: list[Times] = field(default_factory=list)
    generating: list[float] = field(default_factory=list)
    """Seconds to generate a batch, including seconds in which training did something else."""
    stale: float = 0.0

    def on_batch_end(self, step: TrainStep) -> None:
        self.ends.append(Times(time.perf_counter(), time.process_time(), cpu_of_child()))
        self.generating.append(step.timing_dict["generate"])
        self.stale = max(self.stale, step.metrics["staleness/max"])

    def on_validation_start(self, finished_steps: int) -> bool:
        return False

    def per_step(self) -> Times:
        first, last = self.ends[SKIPPED], self.ends[-1]
        count = len(self.ends) - 1 - SKIPPED
        return Times(*(getattr(last, each.name) - getattr(first, each.name) for each in fields(Times))).over(count)


def cpu_of_child() -> float:
    """Return the CPU seconds so far of the process that trains, or of the Tinker server. 0 if there is none."""
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"rllm_local.training_child" in command or b"\0tinker\0serve\0" in command:
                # This is the clock id of clock_getcpuclockid(3).
                return time.clock_gettime(~int(pid) << 3 | 2)
    return 0.0


def run(registry: Registry, name: str, staleness: int, *, latest: bool) -> Clock:
    """Train in a new directory."""
    Waiting.numbers = itertools.count()
    settings = {"rllm.env.name": "guess" if name == "tinker" else name, **ALWAYS, **SIZES[name]}
    if staleness:
        settings |= {"rllm.async_training.enable": True, "rllm.async_training.staleness_threshold": staleness}
    if latest:
        settings |= {"rllm.async_training.partial_rollout": True}
    with tempfile.TemporaryDirectory() as directory:
        settings["rllm.trainer.output_dir"] = directory
        if name == "tinker":
            settings["training.default_local_dir"] = f"{directory}/states"
        plan = make_plan(compose(registry, [layer_from_keys(settings, "the benchmark")]), registry)
        tasks = {f"{split}_tasks": load_tasks(plan, split) for split in ("train", "val")}
        opened, clock = RunDirectory.open(plan.config.rllm.trainer), Clock()
        try:
            TrainingLoop(plan, opened, **tasks, observers=[clock]).fit()
        finally:
            opened.close()
    return clock


def registry() -> Registry:
    """Return the registry of installed plugins with the environment `waiting`."""
    found = Registry.load()
    found.add(
        EnvironmentPlugin(
            name="waiting",
            summary="For the benchmark.",
            load=lambda: Waiting,
            blocking=False,
            defaults={"rllm.workflow.name": "multi_turn_workflow"},
        )
    )
    return found


STALENESSES = {"waiting": (0, 1, 2, 4), "guess": (0, 1), "tinker": (0, 1)}


def main(names: Sequence[str]) -> None:
    """Measure and print."""
    found = registry()
    said = {"waiting": waiting_line, "guess": guess_line, "tinker": guess_line}
    for name in names or list(SIZES):
        print(f"{name}: load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")
        base: Times | None = None
        for staleness in STALENESSES[name]:
            for latest in (False, True) if staleness else (False,):
                clock = run(found, name, staleness, latest=latest)
                took = clock.per_step()
                base = base or took
                weights = "turns" if not staleness else "latest" if latest else "fixed"
                print(f"  S={staleness} {weights:6}  {said[name](base, took)}  staleness {clock.stale:.0f}")


def waiting_line(base: Times, took: Times) -> str:
    """Return the line for `waiting`, in seconds."""
    return f"{base.wall / took.wall:5.2f}x a step  {(took.here + took.child) * 1e3:6.0f} ms of CPU"


def guess_line(base: Times, took: Times) -> str:
    """Return the line for a demo, in CPU time."""
    return (
        f"{base.slower / took.slower:5.2f}x by the CPU of the slower process: generates {took.here * 1e3:4.0f} ms, "
        f"trains {took.child * 1e3:4.0f} ms; {base.wall / took.wall:5.2f}x by time, on a quiet machine"
    )


WATCHED = ("rllm.trainer.test_freq=20", "rllm.trainer.save_freq=-1", "rllm.record=off")
SOLVED = 0.95


class Learnt(NamedTuple):
    """Results of a run's validations."""

    solved: float
    """pass@1 after the last step."""
    found: float
    """pass@16: share of the numbers that at least one rollout finds."""
    first: int | None
    """Steps before the first validation that reaches 95 %."""


def words_of(ahead: int) -> tuple[str, ...]:
    """Return the settings of a run that generates this number of steps ahead."""
    if ahead == 0:
        return ()
    return "rllm.async_training.enable=true", f"rllm.async_training.staleness_threshold={ahead}"


def learn(seed: int, words: Sequence[str]) -> Learnt:
    """Train once, in a temporary directory."""
    command = [sys.executable, "-m", "rllm.cli.main", "train", "guess", "--seed", str(seed), *WATCHED, *words]
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL)
        lines = (Path(directory) / "runs/rllm-training/guess-1/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    validations = [metrics for metrics in map(json.loads, lines) if "val/guess/pass@1" in metrics]
    last = validations[-1]
    reached = [metrics["step"] + 1 for metrics in validations if metrics["val/guess/pass@1"] >= SOLVED]
    return Learnt(last["val/guess/pass@1"], last["val/guess/pass@16"], reached[0] if reached else None)


def measure_learning(words: Sequence[str]) -> None:
    """Train on older tokens, per setting and seed, and print the results."""
    parser = argparse.ArgumentParser(prog="async.py learning")
    parser.add_argument("--ahead", type=int, nargs="+", default=[0, 1, 2, 4], help="steps that are generated ahead")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds to train with")
    parser.add_argument("words", nargs="*", help="further overrides, after --")
    arguments = parser.parse_args(words)
    for ahead in arguments.ahead:
        for seed in arguments.seeds:
            learned = learn(seed, [*words_of(ahead), *arguments.words])
            first = "never" if learned.first is None else f"after {learned.first} steps"
            print(
                f"S={ahead} seed {seed}: solved {learned.solved:.3f}, numbers found {learned.found:.3f}, 95 % {first}",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["learning"]:
        measure_learning(sys.argv[2:])
    else:
        main(sys.argv[1:])
