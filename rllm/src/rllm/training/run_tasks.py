"""The tasks of a run, which must be the same when it is resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rllm.planning.plan import RunPlan
from rllm.planning.task_checks import name_of_source
from rllm.runs.checkpoint import Checkpoint
from rllm.training.task_hashes import TaskHashes
from rllm_core.contracts.environment import Split
from rllm_core.data.types import Task
from rllm_core.errors import CheckpointError

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
