"""Tasks that are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.types import Task
from rllm_core.errors import PluginError, RllmError, described


class LazyTasks(Sequence[Task]):
    """Tasks by index, for files too large to hold and generators too slow to run ahead; nothing made is kept.

    ``LazyTasks([f"sum-{i}" for i in range(10**6)], make_task)``
    """

    def __init__(self, ids: Sequence[str], make: Callable[[int], Task]) -> None:
        """Make none of them yet.

        Args:
            ids: the id of every task, in order, all different; `RowIds` where they are numbers of rows.
            make: makes the task of an index, from 0; the same one whenever it is asked.
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
                f"Task {self.ids[position]!r} could not be made: {described(error)}.",
                "Add --debug to see which line of the dataset or environment failed, or remove the task.",
            ) from error
        if not isinstance(task, Task) or task.id != self.ids[position]:
            raise PluginError(
                "bad-task-id",
                f"Task {position} is {task!r:.80}, and its id was said to be {self.ids[position]!r}.",
                "Let `ids` and `make` agree.",
            )
        return task


class RowIds(Sequence[str]):
    """Numbers of rows as ids, made when they are asked for: those of millions of rows take no memory."""

    def __init__(self, numbers: range | NDArray[np.int64]) -> None:
        """Take the numbers as they are.

        Args:
            numbers: shape (n,), int64, or a range; in the order of the tasks, all different.

        Raises:
            ValueError: two are the same.
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
    """The ids of tasks, in order, without making those that are lazy."""
    return tasks.ids if isinstance(tasks, LazyTasks) else [task.id for task in tasks]
