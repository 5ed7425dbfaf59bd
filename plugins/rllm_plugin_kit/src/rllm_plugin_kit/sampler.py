"""The contract of samplers."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any

import numpy as np

from rllm_core.contracts.sampler import Sampler, SamplerPlugin, SamplerSetup, TaskResult
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError
from rllm_plugin_kit.plugin import PluginContract

BATCHES = 30
TASKS, LEVELS, SOURCES = 24, 4, 3
SIZES = (1, 5, TASKS)
"""Batch sizes of the runs."""


def results_of(positions: Sequence[int], batch: int) -> list[TaskResult]:
    """Return results of four rollouts per task. Later batches and lower positions are solved more often."""
    found = []
    for position in positions:
        chance = min(1.0, (batch + 1) / (1 + position))
        solved = [bool(draw < chance) for draw in np.random.default_rng([batch, position]).random(4)]
        found.append(TaskResult(position=position, solved=solved, rewards=[float(each) for each in solved]))
    return found


@dataclass
class _SamplerRun:
    """A sampler, called as in training: batches are drawn up to `ahead` batches before their training step."""

    sampler: Sampler
    ahead: int
    trained: int = 0
    drawn: list[list[int]] = field(default_factory=list)

    def step(self) -> None:
        """Draw the batches that may be generated now, and observe the results of the next one."""
        while len(self.drawn) <= self.trained + self.ahead:
            self.drawn.append([index(position) for position in self.sampler.draw(len(self.drawn))])
        self.sampler.observe(results_of(self.drawn[self.trained], self.trained))
        self.trained += 1


class SamplerContract(PluginContract[SamplerPlugin[Any]]):
    """Contract of every sampler."""

    kind = "sampler"

    def tasks(self) -> list[Task]:
        """Return the training tasks. Their data has `level`, 0 to 3. Override it if the sampler needs others."""
        return [
            Task(id=f"task-{number}", data={"level": number % LEVELS}, data_source=f"source-{number % SOURCES}")
            for number in range(TASKS)
        ]

    def test_batch_has_known_tasks_without_duplicates(self, params: Any) -> None:
        for size in SIZES:
            run = _SamplerRun(self._sampler(params, size), ahead=0)
            for _ in range(BATCHES):
                self._step(run)
                positions = run.drawn[-1]
                if not 0 < len(positions) <= size:
                    raise self.failure(
                        f"drew {len(positions)} tasks, and a batch has 1 to {size}",
                        "Return at most `setup.batch_size`.",
                    )
                if strange := [position for position in positions if not 0 <= position < TASKS]:
                    raise self.failure(
                        f"drew position {strange[0]}, and there are {TASKS} tasks", "Return positions in `setup.tasks`."
                    )
                if len(set(positions)) < len(positions):
                    raise self.failure(f"drew {positions}, a task twice", "Return each position only once per batch.")

    def test_a_resumed_run_continues_exactly(self, params: Any) -> None:
        for ahead in (0, 2):
            whole, marks = _SamplerRun(self._sampler(params), ahead), []
            for _ in range(BATCHES):
                self._step(whole)
                marks.append((len(whole.drawn), self.saved_state(whole.sampler)))
            for trained in range(1, BATCHES, 4):
                drawn, state = marks[trained - 1]
                fresh = self._sampler(params)
                fresh.load_state_dict(json.loads(state))
                if self.saved_state(fresh) != state:
                    raise self.failure(
                        "saves a different state after it restored one",
                        "Restore all of `state_dict` in `load_state_dict`.",
                    )
                resumed = _SamplerRun(fresh, ahead, trained, whole.drawn[:drawn])
                while resumed.trained < BATCHES:
                    self._step(resumed)
                if resumed.drawn != whole.drawn:
                    raise self.failure(
                        f"draws other tasks when it is resumed after {trained} steps",
                        "Put everything that it stores between calls into state_dict, and seed each draw by its batch.",
                    )

    def test_same_results_give_same_tasks(self, params: Any) -> None:
        runs = [_SamplerRun(self._sampler(params), ahead=1) for _ in range(2)]
        for number in range(BATCHES):
            for seed, run in enumerate(runs):
                random.seed(seed)
                np.random.seed(seed + number)
                self._step(run)
        if runs[0].drawn != runs[1].drawn:
            raise self.failure(
                "draws other tasks in a second run with the same seed and results",
                "Keep state in the object, never in its class or module, and use `rllm_core.seeding.derive_seed`.",
            )

    def test_global_random_state_is_not_used(self, params: Any) -> None:
        run = _SamplerRun(self._sampler(params), ahead=0)
        self.check_process_state(lambda: self._step(run), "Use `np.random.default_rng(derive_seed(setup.seed, …))`.")

    def test_step_without_results_works(self, params: Any) -> None:
        """All rollouts of a step may have failed."""
        sampler = self._sampler(params)
        with self.explain_errors("failed without results", "`observe` may receive an empty list."):
            sampler.draw(0)
            sampler.observe([])
            sampler.draw(1)

    def test_one_task_works(self, params: Any) -> None:
        setup = SamplerSetup(tasks=self.tasks()[:1], batch_size=1, seed=0)
        try:
            made = self.load_plugin()(params, setup)
        except ConfigError:
            return  # its options need other tasks
        with self.explain_errors("failed with one task", "A run may have a single training task."):
            drawn = [list(made.draw(batch)) for batch in range(3)]
        if drawn != [[0]] * 3:
            raise self.failure(f"drew {drawn} from one task", "Return [0] for each batch.")

    def test_metrics_are_numbers(self, params: Any) -> None:
        run = _SamplerRun(self._sampler(params), ahead=0)
        for _ in range(3):
            self._step(run)
            for name, value in run.sampler.metrics().items():
                if not isinstance(value, int | float) or not math.isfinite(value):
                    raise self.failure(f"has the metric {name}={value!r}", "Return finite numbers from `metrics`.")

    def _step(self, run: _SamplerRun) -> None:
        with self.explain_errors(
            f"failed in step {run.trained}", "Any task may be solved or not, in any order of batches."
        ):
            run.step()

    def _sampler(self, params: Any, size: int = 5) -> Sampler:
        setup = SamplerSetup(tasks=self.tasks(), batch_size=size, seed=7)
        try:
            sampler = self.load_plugin()(params, setup)
        except ConfigError as error:
            raise self.failure(
                f"rejects the tasks of this test: {error.message}", "Override `tasks` in your test class."
            ) from error
        if not isinstance(sampler, Sampler):
            raise self.failure(
                f"makes {sampler!r:.80}, which is no sampler", "Derive its class from rllm_core.contracts.Sampler."
            )
        return sampler
