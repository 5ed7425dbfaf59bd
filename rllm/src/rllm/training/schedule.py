"""Which tasks are played when: a function of the seed and of how many batches of tasks were drawn before."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rllm_core.data.tasks import task_ids
from rllm_core.data.types import Task
from rllm_core.seeding import derive_seed


@dataclass(frozen=True, eq=False)
class TaskSchedule:
    """The order of the tasks. Every epoch has each task once, shuffled again. Its last batch may be smaller."""

    tasks: Sequence[Task]
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.tasks) // self.batch_size)

    def digest(self) -> str:
        """Return a digest of the tasks, their order and the batch size."""
        digest = hashlib.sha256(str(self.batch_size).encode())
        for task_id in task_ids(self.tasks):
            digest.update(f"\n{task_id}".encode())
        return digest.hexdigest()

    def epoch_of(self, index: int) -> int:
        """Return the epoch of a batch. Both are counted from 0."""
        return index // self.steps_per_epoch

    def batch(self, index: int) -> list[Task]:
        """Return the tasks of a batch. Batches are counted from 0 over the whole run."""
        epoch, position = divmod(index, self.steps_per_epoch)
        order = np.random.default_rng(derive_seed(self.seed, "tasks", epoch)).permutation(len(self.tasks))
        chosen = order[position * self.batch_size : (position + 1) * self.batch_size]
        return [self.tasks[index] for index in chosen]
