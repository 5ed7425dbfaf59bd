"""Environments of other projects whose tasks only the workflow of the same name rolls out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from rllm_core.contracts.environment import Environment, Outcome
from rllm_core.contracts.plugin import ParamsT
from rllm_core.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig

SESSION_KEYS = frozenset({"rllm.agent.max_steps", "rllm.accumulate_reasoning", "rllm.sdk.*"})
"""Config keys of workflows whose model calls go through sessions of the gateway."""


class WorkflowEnvironment(Environment):
    """The tasks of an environment. Only the workflow `workflow` can roll them out."""

    workflow: ClassVar[str]

    def __init__(self, params: Any) -> None:
        self.params = params

    def reset(self, task: Mapping[str, Any]) -> str:
        raise self._needs_workflow()

    def step(self, action: str) -> Outcome:
        raise self._needs_workflow()

    def _needs_workflow(self) -> PluginError:
        return PluginError(
            "bad-workflow",
            f"Environment {self.workflow!r} needs the workflow {self.workflow!r}.",
            "Remove the key rllm.workflow.name.",
        )


def read_params(config: RunConfig, name: str, params: type[ParamsT], family_option: str) -> ParamsT:
    """Return the options of the run's environment, which must be `name`.

    Raises:
        ConfigError: the run has a different environment.
    """
    env = config.rllm.env
    chosen, _, value = env.name.partition(":")
    if chosen.rpartition("/")[2] != name:
        raise ConfigError(
            "bad-workflow",
            f"Workflow {name!r} rolls out the environment {name!r}, and rllm.env.name is {env.name!r}.",
            f"Set rllm.env.name={name}:{family_option.upper()}, or remove the key rllm.workflow.name.",
        )
    return params.model_validate({**({family_option: value} if value else {}), **env.env_args})


def check_gateway_run(config: RunConfig, name: str, params: type[ParamsT], family_option: str) -> None:
    """Check a run whose workflow uses the gateway: the options of its environment, and of the gateway.

    Raises:
        ConfigError: see `read_params`, or the gateway cannot serve this run.
    """
    from rllm_gateway.serving.checks import check_sdk

    read_params(config, name, params, family_option)
    check_sdk(config.rllm.sdk)
