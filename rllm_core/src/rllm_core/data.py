"""Which tasks each training step plays: a function of the seed and the step, so there is no cursor to lose."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rllm_core.seeding import derive_seed
from rllm_core.types import Task


@dataclass(frozen=True, eq=False)
class TaskSchedule:
    """Every epoch plays every task once, in an order of its own; the last batch of an epoch may be smaller."""

    tasks: Sequence[Task]
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.tasks) // self.batch_size)

    def digest(self) -> str:
        """Changes when the tasks, their order or the batch size do."""
        text = "\n".join([str(self.batch_size), *(task.id for task in self.tasks)])
        return hashlib.sha256(text.encode()).hexdigest()

    def epoch_of(self, global_step: int) -> int:
        return global_step // self.steps_per_epoch

    def batch(self, global_step: int) -> list[Task]:
        """The tasks of one step."""
        epoch, position = divmod(global_step, self.steps_per_epoch)
        order = np.random.default_rng(derive_seed(self.seed, "tasks", epoch)).permutation(len(self.tasks))
        chosen = order[position * self.batch_size : (position + 1) * self.batch_size]
        return [self.tasks[index] for index in chosen]
