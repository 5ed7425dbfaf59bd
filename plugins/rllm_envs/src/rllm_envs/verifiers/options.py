"""Options of the environment `verifiers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from rllm_core.contracts.params import NoParams, Params
from rllm_envs.hosted import check_gateway_run
from rllm_envs.seeds import LARGEST_SPLIT, SEEDS

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig

ENDLESS_TRAIN_SIZE = 1000
"""Number of training tasks if a taskset is endless and the user sets no number."""
NAME = "verifiers"


class VerifiersParams(Params):
    """Options of ``verifiers``."""

    id: str = Field(min_length=1)
    """Id of the taskset: the name of an installed Python module."""
    env: str | None = Field(None, min_length=1)
    """Id of the environment that runs the taskset, such as best-of-n or user-sim."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Settings of the environment, such as {taskset: {split: train}, agent: {max_turns: 4}}. They are the options
    `--env.*` of `vf-eval`."""
    val_taskset: dict[str, Any] | None = None
    """Settings of the taskset for validation, such as {split: test}. By default, validation uses the tasks after the
    training tasks."""
    trained: list[str] | None = Field(None, min_length=1)
    """Seats to train. By default, all seats that the environment marks trainable."""
    train_size: int | None = Field(None, gt=0, le=LARGEST_SPLIT)
    """Number of training tasks. By default, all tasks, or 1000 if the taskset is endless."""
    val_size: int = Field(0, ge=0, le=LARGEST_SPLIT)
    """Number of validation tasks."""
    seed: int = Field(0, ge=0, lt=SEEDS)
    """Seed of Python's random numbers while tasks are loaded."""


def check_run(config: RunConfig, params: NoParams) -> None:
    """Check a run with the workflow `verifiers`: its environment and the environment's options.

    Raises:
        ConfigError: the run has a different environment, or the gateway cannot serve it.
    """
    check_gateway_run(config, NAME, VerifiersParams, "id")
