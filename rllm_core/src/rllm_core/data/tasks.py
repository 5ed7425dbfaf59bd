"""Tasks that are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from rllm_core.data.types import Task
from rllm_core.errors import PluginError, RllmError


class LazyTasks(Sequence[Task]):
    """Tasks by index, for files too large to hold and generators too slow to run ahead; nothing made is kept.

    ``LazyTasks([f"sum-{i}" for i in range(10**6)], make_task)``
    """

    def __init__(self, ids: Sequence[str], make: Callable[[int], Task]) -> None:
        """Make none of them yet.

        Args:
            ids: the id of every task, in order, all different.
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
            reason = f"{type(error).__name__}: {error}"
            raise PluginError(
                f"Task {self.ids[position]!r} could not be made: {reason}.",
                "Mend the dataset or environment that makes it, or leave the task out.",
            ) from error
        if not isinstance(task, Task) or task.id != self.ids[position]:
            raise PluginError(
                f"Task {position} is {task!r:.80}, and its id was said to be {self.ids[position]!r}.",
                "Let `ids` and `make` agree.",
            )
        return task


def task_ids(tasks: Sequence[Task]) -> Sequence[str]:
    """The ids of tasks, in order, without making those that are lazy."""
    return tasks.ids if isinstance(tasks, LazyTasks) else [task.id for task in tasks]
