"""Hashes of the tasks of a split, which find the tasks that changed between two starts of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rllm.rows.task_content import hashes_of
from rllm_core.data.tasks import task_ids
from rllm_core.data.types import Task

SPREAD = 100
"""Number of tasks that are hashed, over a whole split that is generated on demand."""
NAMED = 5
"""Maximum number of task ids in a message."""


@dataclass(frozen=True, eq=False)
class TaskHashes:
    """Hashes of the tasks of a split, in their order."""

    count: int
    """Number of tasks in the split."""
    every: int
    """1 if all tasks are hashed, 3 if every third task is."""
    values: NDArray[np.uint64]
    """Hashes, (n, 2): of a task's content without its data source, and of its data source. They do not depend on the
    task's id, because an id may be a row number."""

    @classmethod
    def hash_tasks(cls, tasks: Sequence[Task], *, is_stored: bool) -> TaskHashes:
        """Hash the tasks of a split. If they are not stored but generated on demand, hash a sample."""
        every = 1 if is_stored else len(tasks) // SPREAD + 1
        hashed = bytearray()
        for task in tasks if every == 1 else tasks[::every]:
            hashed += b"".join(hashes_of(task))
        return cls(len(tasks), every, np.frombuffer(hashed, "<u8").reshape(-1, 2))

    @classmethod
    def from_bytes(cls, stored: bytes) -> TaskHashes:
        """Read the result of `to_bytes`."""
        (count, every), *_ = rows = np.frombuffer(stored, "<u8").reshape(-1, 2)
        return cls(int(count), int(every), rows[1:])

    def to_bytes(self) -> bytes:
        """Return 16 bytes with `count` and `every`, and 16 bytes for each hashed task."""
        return np.concatenate([np.array([[self.count, self.every]], "<u8"), self.values]).astype("<u8").tobytes()

    def find_change(self, before: TaskHashes, tasks: Sequence[Task]) -> str | None:
        """Return how the tasks differ from the tasks of an earlier start. None if they are the same.

        Args:
            before: hashes of the earlier start.
            tasks: the tasks of these hashes.
        """
        if before.every != self.every or (self.every > 1 and before.count != self.count):
            return f"{before.count} tasks before, {self.count} now, or a different kind of source."
        if np.array_equal(before.values, self.values):
            return None
        was, now = before.values[:, 0], self.values[:, 0]
        ids = task_ids(tasks)
        gone, new = _count_missing(was, now), _count_missing(now, was)
        shared = min(len(was), len(now))
        places = np.flatnonzero(was[:shared] != now[:shared]) * self.every
        if not gone and not new:
            if len(places):
                return f"the same tasks in a different order, from task {ids[places[0]]!r} on."
            moved = np.flatnonzero(before.values[:, 1] != self.values[:, 1]) * self.every
            return f"different data sources of {_names(moved, len(now), ids)}. The option data_source sets them."
        longer = len(now) - len(was)
        if len(places) == gone - max(-longer, 0) == new - max(longer, 0) != 0:
            after = f", and {abs(longer)} {'added' if longer > 0 else 'removed'} at the end" if longer else ""
            return f"different content of {_names(places, len(was), ids)}{after}."
        first = int(places[0]) if len(places) else shared
        where = f"from task {ids[first]!r} on" if first < len(ids) else f"after task {ids[-1]!r}"
        lost = f"{gone} of {len(was)} tasks removed" if gone else ""
        added = f"{new} added" if gone else f"{new} added to {len(was)} tasks"
        return f"{' and '.join([lost, added] if gone and new else [lost or added])}, {where}."


def _count_missing(hashes: NDArray[np.uint64], there: NDArray[np.uint64]) -> int:
    return (Counter(hashes.tolist()) - Counter(there.tolist())).total()


def _names(places: NDArray[np.int64], total: int, ids: Sequence[str]) -> str:
    more = ", …" if len(places) > NAMED else ""
    return f"{len(places)} of {total} tasks ({', '.join(repr(ids[place]) for place in places[:NAMED])}{more})"
