"""Runs of `guess` that are killed at random instants and resumed: the part `kills` of ``journal.py``.

A run is killed twice, the second time after its resume, and then runs to its end. It must make every step, on the same
tasks as an undisturbed run, with no token above the bound. It must not sample a call that is in its journal. With
fixed-version weights it must end with the weights of an undisturbed run. Each start is a new process, forked from a
process that has imported torch and has not computed.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from journal_starts import SAID, SETTINGS, STEPS, fit, registry_of_starts

from rllm.runs.metrics_file import METRICS
from rllm_core.plugins.registry import Registry
from rllm_local.same_bits import fix_order_of_sums
from rllm_record.journal.records import CONFIG, KeptCall, decoded, read_frames

KILLS_PER_RUN = 2


@dataclass(frozen=True, kw_only=True)
class Ended:
    """An undisturbed run."""

    digest: str
    tasks: list[Any]
    """The batch's number and the rollouts of each step."""
    seconds: float


class Runs:
    """Runs of one bound and one choice of weights, below a directory."""

    def __init__(self, registry: Registry, directory: Path, staleness: int, *, latest: bool) -> None:
        self._registry, self._directory, self._count = registry, directory, 0
        self._staleness, self._latest = staleness, latest
        began = time.monotonic()
        _wait_for(self._started(self._settings("whole")))
        whole = self._run_directory("whole")
        self._whole = Ended(
            digest=_digest(whole),
            tasks=[line["tasks"] for line in _read_lines(whole) if "step" in line],
            seconds=time.monotonic() - began,
        )

    def disturbed(self, instants: random.Random) -> tuple[int, list[str]]:
        """Return how often a run was killed, and its faults."""
        self._count += 1
        name, kills = f"run{self._count}", 0
        wrong, tasks = list[str](), dict[int, Any]()
        directory = self._run_directory(name)
        killed = True
        while killed:
            first, kept = _finished(directory), _read_call_seeds(directory)
            # A start that is killed early writes nothing, and the file would contain the lines of the start before.
            (directory / SAID).unlink(missing_ok=True)
            process = self._started(self._settings(name))
            killed = kills < KILLS_PER_RUN and _killed(process, instants.uniform(0, self._whole.seconds))
            kills += killed
            if not killed:
                _wait_for(process)
            wrong += self._wrong_with_start(directory, first, kept, tasks)
        wrong += self._wrong_with_end(directory, tasks)
        return kills, [f"S={self._staleness} {self._weights} {name}: {each}" for each in wrong]

    @property
    def _weights(self) -> str:
        return "latest" if self._latest else "fixed"

    def _wrong_with_start(self, directory: Path, first: int, kept: set[int], tasks: dict[int, Any]) -> Iterator[str]:
        said = _read_lines(directory)
        sampled = [line["sampled"] for line in said if "sampled" in line]
        steps = [line for line in said if "step" in line]
        if again := kept & set(sampled):
            batches = sorted({line["task_batch"] for line in said if line.get("sampled") in again})
            yield f"{len(again)} calls of the batches {batches} were sampled again, in a start from step {first}"
        if twice := [seed for seed, times in Counter(sampled).items() if times > 1]:
            yield f"{len(twice)} calls were sampled twice"
        if [line["step"] for line in steps] != list(range(first, first + len(steps))):
            yield f"a start from step {first} made the steps {[line['step'] for line in steps]}"
        if stale := [line["stale"] for line in steps if line["stale"] > self._staleness]:
            yield f"tokens are {max(stale):.0f} updates old"
        tasks |= {line["step"]: line["tasks"] for line in steps}

    def _wrong_with_end(self, directory: Path, tasks: dict[int, Any]) -> Iterator[str]:
        if [tasks.get(step) for step in range(STEPS)] != self._whole.tasks:
            yield "its steps had other tasks"
        logged = [line["step"] for line in _lines(directory / METRICS) if "train/weight_version" in line]
        if logged != list(range(STEPS)):
            yield f"its metrics are of the steps {logged}"
        if not self._latest and _digest(directory) != self._whole.digest:
            yield "its weights are others"

    def _settings(self, name: str) -> dict[str, Any]:
        return SETTINGS | {
            "rllm.trainer.output_dir": str(self._directory),
            "rllm.trainer.project_name": f"{self._weights}{self._staleness}",
            "rllm.trainer.experiment_name": name,
            "rllm.async_training.staleness_threshold": self._staleness,
            **({"rllm.async_training.partial_rollout": True} if self._latest else {}),
        }

    def _run_directory(self, name: str) -> Path:
        return self._directory / f"{self._weights}{self._staleness}" / name

    def _started(self, settings: dict[str, Any]) -> BaseProcess:
        process = multiprocessing.get_context("fork").Process(target=fit, args=(self._registry, settings))
        process.start()
        return process


def _killed(process: BaseProcess, seconds: float) -> bool:
    """True if the run was still running at that time."""
    process.join(seconds)
    if process.exitcode is not None:
        assert process.exitcode == 0
        return False
    process.kill()
    process.join()
    return True


def _wait_for(process: BaseProcess) -> None:
    process.join()
    assert process.exitcode == 0


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a file."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def _read_lines(directory: Path) -> list[dict[str, Any]]:
    return _lines(directory / SAID)


def _finished(directory: Path) -> int:
    """Return the number of steps in the newest checkpoint."""
    return max((int(each.name.removeprefix("step_")) for each in directory.glob("checkpoints/step_*")), default=0)


def _digest(directory: Path) -> str:
    weights = directory / "checkpoints" / "latest" / "backend" / "model" / "model.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def _read_call_seeds(directory: Path) -> set[int]:
    """Return the seeds of the calls in the journal."""
    bodies = [body for path in directory.glob("journal/*.calls") for body in read_frames(path).records]
    calls = [decoded(body) for body in bodies if not body.startswith(CONFIG)]
    return {call.seed for call in calls if isinstance(call, KeptCall)}


def kills(count: int) -> int:
    """Kill `count` times, half of them in runs with fixed-version weights. Return the number of faults."""
    fix_order_of_sums()
    registry, instants, all_wrong = registry_of_starts(), random.Random(count), 0
    with tempfile.TemporaryDirectory() as directory:
        for latest in (False, True):
            runs = [Runs(registry, Path(directory), staleness, latest=latest) for staleness in (1, 2, 3)]
            killed = wrong = made = 0
            while killed < count // 2:
                times, problems = runs[made % len(runs)].disturbed(instants)
                killed, wrong, made = killed + times, wrong + len(problems), made + 1
                for problem in problems:
                    print(problem, flush=True)
            print(f"{'latest' if latest else 'fixed'}: {killed} kills in {made} runs, {wrong} faults", flush=True)
            all_wrong += wrong
    return all_wrong
