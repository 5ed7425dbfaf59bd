"""Tasks that are created on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.types import Task
from rllm_core.errors import PluginError, RllmError, describe_error


class LazyTasks(Sequence[Task]):
    """Tasks by index, for files that are too large for memory and for slow generators. Created tasks are not stored.

    ``LazyTasks([f"sum-{i}" for i in range(10**6)], make_task)``
    """

    def __init__(self, ids: Sequence[str], make: Callable[[int], Task]) -> None:
        """Store the ids and the function, without creating a task.

        Args:
            ids: the id of every task, in order, all different. Use `RowIds` if the ids are row numbers.
            make: takes an index, from 0, and creates the task. It must always return the same task for an index.
        """
        self.ids = ids
        self._make = make

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        try:
            task = self._make(position)
        except RllmError:
            raise
        except Exception as error:
            raise PluginError(
                "tasks-failed",
                f"Task {self.ids[position]!r} could not be made: {describe_error(error)}.",
                "Add --debug to see which line of the dataset or environment failed, or remove the task.",
            ) from error
        if not isinstance(task, Task) or task.id != self.ids[position]:
            raise PluginError(
                "bad-task-id",
                f"Task {position} is {task!r:.80}, and its id in `ids` is {self.ids[position]!r}.",
                "Return a task with this id from `make`.",
            )
        return task


class RowIds(Sequence[str]):
    """Row numbers as ids, created on demand, so that ids of millions of rows need no memory."""

    def __init__(self, numbers: range | NDArray[np.int64]) -> None:
        """Store the numbers.

        Args:
            numbers: shape (n,), int64, or a range. They are in the order of the tasks, all different.

        Raises:
            ValueError: two numbers are equal.
        """
        if not isinstance(numbers, range) and not np.diff(np.sort(numbers)).all():
            raise ValueError("row numbers differ")
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return RowIds(self._numbers[index]) if isinstance(index, slice) else str(self._numbers[index])


def task_ids(tasks: Sequence[Task]) -> Sequence[str]:
    """Return the ids of tasks in order, without creating lazy tasks."""
    return tasks.ids if isinstance(tasks, LazyTasks) else [task.id for task in tasks]
