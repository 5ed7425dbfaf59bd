"""Tasks of environments of other projects: games that follow from seeds, and tasks whose content a project has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rllm_core.contracts.environment import Split
from rllm_core.data.tasks import LazyTasks
from rllm_core.data.types import Task
from rllm_envs.seeds import SeedParams, list_seeds


def make_seed_tasks(split: Split, params: SeedParams, source: str, **data: Any) -> LazyTasks:
    """Return the tasks of a split, by seed. Their data is `data` with ``seed``, and their ids begin with `source`."""
    seeds = list_seeds(split, params.seed, params.train_size, params.val_size)
    ids = [f"{source}-{seed}" for seed in seeds]
    return LazyTasks(ids, lambda at: Task(id=ids[at], data={**data, "seed": seeds[at]}, data_source=source))


@dataclass(frozen=True, kw_only=True)
class HostedTask(Task):
    """A task with content that a different project has. Its data identifies it there."""

    original: Callable[[], Any] = field(compare=False, repr=False)
    """Returns the content as JSON data."""

    def content(self) -> dict[str, Any]:
        """Return the task's data and its content, which a resumed run compares with its start."""
        return {**self.data, "original": self.original()}
