"""The tasks of the environment `inspect`: the samples of a task of inspect, by id."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from inspect_ai.dataset import Sample

from rllm_core.contracts.environment import Split
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError
from rllm_envs.hosted import WorkflowEnvironment
from rllm_envs.hosted_task import HostedTask
from rllm_envs.inspect.loading import list_samples, load_models, load_task
from rllm_envs.inspect.options import InspectParams

SAMPLE, SPLIT = "sample", "split"
"""Keys of a task's data."""


class InspectTasks(WorkflowEnvironment):
    """The samples of a task. inspect runs its own solvers and scorers."""

    workflow = "inspect"

    @classmethod
    def tasks(cls, split: Split, params: InspectParams) -> Sequence[Task]:
        """Return a task for each sample of a split.

        Raises:
            ConfigError: the task cannot be loaded, has too few samples, or does not separate training from validation.
        """
        separate = params.train_args is not None
        if split == "train" and not separate and params.val_size is None:
            raise ConfigError(
                "bad-value",
                f"All samples of 'inspect:{params.task}' are for validation, and none for training.",
                "Set rllm.env.env_args.val_size to a number, or rllm.env.env_args.train_args={split: train}.",
            )
        task = load_task(params, (params.train_args or {}) if split == "train" else {}, load_models(params))
        samples = list_samples(task)
        ids = list(samples)
        held_out = params.val_size or 0
        is_all = split == "train" and not separate and held_out == len(ids)
        if (split == "val" or not separate) and (held_out > len(ids) or is_all):
            raise ConfigError(
                "too-few-tasks",
                f"Task 'inspect:{params.task}' has {len(ids)} samples, and rllm.env.env_args.val_size is {held_out}"
                f"{', so none is for training' if is_all else ''}.",
                "Set rllm.env.env_args.val_size to a smaller number.",
            )
        if split == "train":
            ids = ids if separate else ids[: len(ids) - held_out]
            ids = ids[: params.train_size]
        elif params.val_size is not None:
            ids = ids[:held_out] if separate else ids[len(ids) - held_out :]
        # Ids of different splits must differ.
        suffix = "-train" if separate and split == "train" else ""
        return [
            HostedTask(
                id=f"{task.name}-{each}{suffix}",
                data={SAMPLE: each, SPLIT: split},
                data_source=task.name,
                original=partial(_content_of, samples[each]),
            )
            for each in ids
        ]


def _content_of(sample: Sample) -> dict[str, Any]:
    """Return the content of a sample. Its messages have random ids, which are not in it."""
    messages = sample.input
    asked = messages if isinstance(messages, str) else [[each.role, each.text] for each in messages]
    rest = {"target": sample.target, "choices": sample.choices, "metadata": sample.metadata, "setup": sample.setup}
    return {"input": asked, "files": sample.files, **rest}
