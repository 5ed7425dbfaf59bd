"""The properties that a resumed run must share with its earlier starts.

These are the task order and the weights in use (`RunIdentity`), the tasks' content (`RunTasks`), and inputs other than
options, such as a reward's file (`RunSources`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rllm.planning.plan import RunPlan
from rllm.planning.task_checks import name_of_source
from rllm.rows.task_content import hashes_of
from rllm.runs.checkpoint import Checkpoint
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.environment import Split
from rllm_core.data.tasks import task_ids
from rllm_core.data.types import Task
from rllm_core.errors import CheckpointError, PluginError, failures_as


@dataclass(frozen=True)
class RunIdentity:
    """Properties stored in every checkpoint. With different ones, a resumed run would train on different tasks, or on
    tokens that are staler than allowed."""

    seed: int
    tasks: str
    """Digest of the ids of the training tasks, and of how many a step has."""
    staleness: int
    pins_weights: bool

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def has_same_task_ids(self, checkpoint: Checkpoint) -> bool:
        """True if the checkpoint belongs to a run with the same task ids in the same order, and as many in a step."""
        return bool(checkpoint.state["identity"]["tasks"] == self.tasks)

    def check_same(self, checkpoint: Checkpoint) -> None:
        """Raise CheckpointError if the checkpoint belongs to a different run."""
        was = RunIdentity(**checkpoint.state["identity"])
        if was.seed != self.seed:
            raise CheckpointError(
                "run-changed",
                f"{checkpoint.directory} was made with rllm.trainer.seed={was.seed}, this run has {self.seed}.",
                f"Resume with rllm.trainer.seed={was.seed}.",
            )
        if not self.has_same_task_ids(checkpoint):
            raise CheckpointError(
                "run-changed",
                f"{checkpoint.directory} was made with other ids of training tasks, or a different "
                "data.train_batch_size.",
                "Resume with the same environment, options and data.train_batch_size as at the first start.",
            )
        if was.staleness != self.staleness:
            raise CheckpointError(
                "run-changed",
                f"{checkpoint.directory} was made with a staleness of {was.staleness}, this run has {self.staleness}.",
                "Resume with the same values of rllm.async_training.",
            )
        if was.pins_weights != self.pins_weights:
            raise CheckpointError(
                "run-changed",
                f"{checkpoint.directory} was made with "
                f"rllm.async_training.partial_rollout={str(not was.pins_weights).lower()}, this run has the other.",
                "Resume with the same values of rllm.async_training.",
            )


LONGEST = 80
"""Maximum number of characters of a source line in a message."""


class RunSources:
    """The sources of a run's plugins at the start of the run.

    Args:
        chosen: rewards and workflows.
        on_changed: ``rllm.trainer.on_changed_source``.
    """

    def __init__(self, chosen: Iterable[PluginChoice[Any]], on_changed: Literal["error", "warn"]) -> None:
        self._on_changed = on_changed
        self._texts: dict[str, str] = {}
        for entry in chosen:
            plugin = entry.plugin
            if plugin.sources is not None:
                with failures_as(PluginError, f"`sources` of {plugin.kind} {entry.qualified_name}"):
                    found = plugin.sources(entry.params)
                self._texts |= {f"{plugin.kind} {plugin.name}: {name}": text for name, text in found.items()}

    def state_dict(self) -> dict[str, str]:
        """Return the text of each source, by plugin and source, for a checkpoint."""
        return dict(self._texts)

    def check_same(self, before: Mapping[str, str], checkpoint: Path, warn: Callable[[str], None]) -> None:
        """Compare with a checkpoint's sources. A source that only one of them has is the user's choice.

        Raises:
            CheckpointError: a source differs, and ``rllm.trainer.on_changed_source`` is ``error``.
        """
        for name in sorted(before.keys() & self._texts.keys()):
            if before[name] == self._texts[name]:
                continue
            changed = f"The source of {name} changed after {checkpoint} was made: "
            changed += _difference(before[name], self._texts[name])
            if self._on_changed == "error":
                raise CheckpointError(
                    "source-changed",
                    changed,
                    "Undo the change, or accept it: add rllm.trainer.on_changed_source=warn to this command.",
                )
            warn(changed)


def _difference(before: str, now: str) -> str:
    """Return the first line that differs, on both sides."""
    pairs = zip_longest(before.splitlines(), now.splitlines())
    for number, (was, is_now) in enumerate(pairs, 1):
        if was != is_now:
            return f"line {number} was {_quote_line(was)} and is {_quote_line(is_now)}."
    return "its line ends differ."


def _quote_line(line: str | None) -> str:
    return "not there" if line is None else repr(line[:LONGEST])


FILES: dict[Split, str] = {"train": "train_tasks.hashes", "val": "val_tasks.hashes"}
"""Files in a checkpoint with the hashes of a split."""
KINDS: dict[Split, str] = {"train": "Training tasks", "val": "Validation tasks"}


class RunTasks:
    """The tasks of a run at its start, with their hashes."""

    def __init__(self, plan: RunPlan, train_tasks: Sequence[Task], val_tasks: Sequence[Task]) -> None:
        self._on_changed = plan.config.rllm.trainer.on_changed_source
        self._tasks: dict[Split, Sequence[Task]] = {"train": train_tasks, "val": val_tasks}
        self._datasets = {"train": plan.train_dataset, "val": plan.val_dataset}
        self._hashes = {
            split: TaskHashes.hash_tasks(tasks, is_stored=self._datasets[split] is not None or isinstance(tasks, list))
            for split, tasks in self._tasks.items()
        }

    def files(self) -> dict[str, bytes]:
        """Return the files of a checkpoint with the hashes."""
        return {FILES[split]: hashes.to_bytes() for split, hashes in self._hashes.items()}

    def check_same(self, checkpoint: Checkpoint, warn: Callable[[str], None], *, same_ids: bool) -> None:
        """Compare with a checkpoint's tasks. Validation tasks may differ, with a warning.

        Args:
            checkpoint: the last checkpoint of an earlier start of this run.
            warn: prints a warning.
            same_ids: True if the training tasks have the same ids in the same order.

        Raises:
            CheckpointError: a training task differs. If ids are the same, only if
                ``rllm.trainer.on_changed_source`` is ``error``.
        """
        for split, tasks in self._tasks.items():
            file = checkpoint.directory / FILES[split]
            if not file.is_file():
                warn(
                    f"{checkpoint.directory} has no hashes of tasks, because an earlier version of rllm made it. "
                    "Changes of tasks are not detected"
                )
                return
            change = self._hashes[split].find_change(TaskHashes.from_bytes(file.read_bytes()), tasks)
            if change is None:
                continue
            changed = f"{self._name(split)} changed after {checkpoint.directory} was made: {change}"
            if split == "val":
                warn(f"{changed} Metrics of validation cannot be compared with earlier ones")
            elif not same_ids:
                raise CheckpointError(
                    "run-changed",
                    changed,
                    f"Undo the change, or start a new run with these weights: --model {checkpoint.directory} "
                    "rllm.trainer.experiment_name=NAME",
                )
            elif self._on_changed == "error":
                raise CheckpointError(
                    "source-changed",
                    changed,
                    "Undo the change, or accept it: add rllm.trainer.on_changed_source=warn to this command.",
                )
            else:
                warn(changed)

    def _name(self, split: Split) -> str:
        dataset = self._datasets[split]
        return KINDS[split] if dataset is None else f"{KINDS[split]} of {name_of_source(dataset, '')}"


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
