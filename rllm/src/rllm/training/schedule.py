"""Epochs of a run: how many rollout batches one pass over the training tasks takes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from rllm_core.data.tasks import task_ids
from rllm_core.data.types import Task


@dataclass(frozen=True, eq=False)
class TaskSchedule:
    """The training tasks and the maximum number of tasks in a batch. The run's sampler chooses the tasks of a batch."""

    tasks: Sequence[Task]
    batch_size: int

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
