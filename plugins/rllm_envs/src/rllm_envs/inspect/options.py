"""Options of the environment `inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rllm_core.contracts.params import NoParams, Params
from rllm_envs.hosted import check_gateway_run
from rllm_envs.seeds import LARGEST_SPLIT

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig

POLICY = "policy"
"""Model of a role that the policy answers."""
NAME = "inspect"


class InspectParams(Params):
    """Options of ``inspect``."""

    task: str = Field(min_length=1)
    """The task: a registered name such as inspect_evals/gsm8k, or FILE.py or FILE.py@NAME."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the task's function, such as {fewshot: 5}."""
    train_args: dict[str, Any] | None = None
    """Arguments that differ for training, such as {split: train}. All samples of the other split are then for
    validation."""
    train_size: int | None = Field(None, gt=0, le=LARGEST_SPLIT)
    """Number of training samples. By default, all."""
    val_size: int | None = Field(None, ge=0, le=LARGEST_SPLIT)
    """Number of validation samples: the last samples of the task, or the first samples if train_args is set. By
    default, all."""
    reward: str | None = Field(None, min_length=1)
    """The score that is the reward: SCORER, or SCORER.KEY if its value is a dictionary. By default, the first scorer of
    the task."""
    model_roles: dict[str, str | dict[str, Any]] = Field(default_factory=dict)
    """Models of the task's roles: a name such as openai/gpt-5-mini, arguments of get_model() such as {model: …,
    base_url: …}, or `policy`. By default, the policy is the grader. Roles are never trained."""
    sandbox: str | None = Field(None, min_length=1)
    """Type of sandbox, such as docker or local. By default, the task's own."""
    log_dir: Path | None = None
    """Directory for logs of inspect, which `inspect view` shows. By default, no log is kept."""


def read_sources(params: InspectParams) -> dict[str, str]:
    """Return the file of the task, if it has one."""
    before, suffix, _ = params.task.partition(".py")
    file = Path(before + suffix).expanduser()
    return {str(file): file.read_text(encoding="utf-8")} if suffix and file.is_file() else {}


def check_run(config: RunConfig, params: NoParams) -> None:
    """Check a run with the workflow `inspect`: its environment and the environment's options.

    Raises:
        ConfigError: the run has a different environment, or the gateway cannot serve it.
    """
    check_gateway_run(config, NAME, InspectParams, "task")
