"""The tasks of a taskset, by index. A resumed run loads the same task for an index again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import verifiers.v1 as vf

from rllm_core.contracts.environment import Split
from rllm_core.data.tasks import LazyTasks
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError
from rllm_core.seeding import derive_seed
from rllm_envs.hosted import WorkflowEnvironment
from rllm_envs.tasks import HostedTask
from rllm_envs.verifiers.loading import load_taskset
from rllm_envs.verifiers.options import ENDLESS_TRAIN_SIZE, VerifiersParams

INDEX, SPLIT = "index", "split"
"""Keys of a task's data."""


class TaskSource:
    """The tasks of a taskset in order. They are loaded when they are needed, so a taskset may be endless."""

    def __init__(self, taskset: vf.Taskset, seed: int) -> None:
        """Load nothing yet. `seed` seeds Python's random numbers, which the taskset may use."""
        self.bounded: bool = taskset.bounded
        self._loading: Iterator[vf.Task] = iter(taskset)
        self._loaded: list[vf.Task] = []
        self._random = random.Random(derive_seed(seed, "tasks")).getstate()

    def count(self, limit: int | None = None) -> int:
        """Return the number of tasks, at most `limit`. An endless taskset needs a limit, and loads nothing."""
        if not self.bounded and limit is not None:
            return limit
        self._load(limit)
        return len(self._loaded) if limit is None else min(limit, len(self._loaded))

    def __getitem__(self, index: int) -> vf.Task:
        self._load(index + 1)
        return self._loaded[index]

    def _load(self, count: int | None) -> None:
        """Load tasks until `count` are loaded. The random numbers of all other code do not change."""
        before = random.getstate()
        random.setstate(self._random)
        try:
            while count is None or len(self._loaded) < count:
                task = next(self._loading, None)
                if task is None:
                    break
                self._loaded.append(task)
        finally:
            self._random = random.getstate()
            random.setstate(before)


class Splits:
    """The training and validation tasks of the options."""

    def __init__(self, params: VerifiersParams) -> None:
        self._params = params
        self._train = TaskSource(load_taskset(params, {}), params.seed)
        other = params.val_taskset
        self._val = self._train if other is None else TaskSource(load_taskset(params, other), params.seed)

    def indices(self, split: Split) -> range:
        """Return the indices of a split's tasks in their taskset. No task is in both splits."""
        params, train = self._params, self._train
        if self._val is not train:
            return range(train.count(self._train_size) if split == "train" else self._val.count(params.val_size))
        size = self._train_size
        if size is None:
            total = train.count()
            size = max(total - params.val_size, 0)
        else:
            total = train.count(size + params.val_size)
            size = min(size, total)
        return range(size) if split == "train" else range(size, total)

    def find(self, data: Mapping[str, Any]) -> vf.Task:
        """Return the task of verifiers that belongs to a task's data."""
        return self.source(data[SPLIT])[data[INDEX]]

    def source(self, split: Split) -> TaskSource:
        """Return the taskset of a split."""
        return self._train if split == "train" else self._val

    @property
    def _train_size(self) -> int | None:
        """The number of training tasks. None for all tasks."""
        endless = None if self._train.bounded else ENDLESS_TRAIN_SIZE
        return endless if self._params.train_size is None else self._params.train_size


class VerifiersTasks(WorkflowEnvironment):
    """The tasks of a taskset. verifiers runs its own episodes."""

    workflow = "verifiers"

    @classmethod
    def tasks(cls, split: Split, params: VerifiersParams) -> Sequence[Task]:
        """Return the tasks of a split, by index.

        Raises:
            ConfigError: the taskset has fewer tasks than validation needs.
        """
        splits = Splits(params)
        indices = splits.indices(split)
        if split == "val" and len(indices) < params.val_size:
            raise ConfigError(
                "too-few-tasks",
                f"Taskset {params.id!r} has {len(indices)} of {params.val_size} validation tasks.",
                "Set rllm.env.env_args.val_size or rllm.env.env_args.train_size to a smaller number.",
            )
        # Ids of different tasksets must differ.
        suffix = "-val" if split == "val" and params.val_taskset is not None else ""
        ids = [f"{params.id}-{index}{suffix}" for index in indices]

        source = splits.source(split)

        def hash_of(index: int) -> str | None:
            """Return verifiers' hash of a task's content. None if the taskset is endless, and loads tasks on demand."""
            return source[index].hash if source.bounded else None

        def make(at: int) -> Task:
            data = {INDEX: indices[at], SPLIT: split}
            original = partial(hash_of, indices[at])
            return HostedTask(id=ids[at], data=data, data_source=params.id, original=original)

        tasks = LazyTasks(ids, make)
        return list(tasks) if source.bounded else tasks
