"""Columns of the tasks' data that samplers read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rllm_core.data.types import Task
from rllm_core.errors import ConfigError, did_you_mean


def column(tasks: Sequence[Task], key: str) -> list[Any]:
    """Return one value of each task's data.

    Raises:
        ConfigError: a task lacks it.
    """
    values = []
    for task in tasks:
        if not isinstance(value := task.data.get(key), str | int | float):
            raise ConfigError(
                "missing-column",
                f"rllm.sampler.key is {key!r}, and task {task.id!r} has no text or number in this column.",
                did_you_mean(key, task.data) or f"Columns of its data: {', '.join(task.data) or 'none'}.",
            )
        values.append(value)
    return values
