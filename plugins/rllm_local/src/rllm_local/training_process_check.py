"""Whether `local.training_process` acts in a run."""

from __future__ import annotations

from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig
from rllm_local.settings import LocalConfig


def check_training_process(run: RunConfig, settings: LocalConfig) -> None:
    """Raise ConfigError where one process is asked for, and there is one anyway."""
    if not settings.local.training_process and not run.rllm.async_training.staleness:
        raise ConfigError(
            "unused-key",
            "`local.training_process` is false and has no effect: rollouts and updates take turns, in one process.",
            "Leave it out, or set rllm.async_training.enable=true and rllm.async_training.staleness_threshold=1.",
        )
