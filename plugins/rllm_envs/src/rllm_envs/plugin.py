"""The environments of other projects, from `gymnasium` to `verifiers`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.workflow import WorkflowPlugin
from rllm_core.plugins import hookimpl
from rllm_envs.gymnasium import plugin as gymnasium
from rllm_envs.inspect import plugin as inspect
from rllm_envs.nemo_gym import plugin as nemo_gym
from rllm_envs.open_spiel import plugin as open_spiel
from rllm_envs.openenv import plugin as openenv
from rllm_envs.reasoning_gym import plugin as reasoning_gym
from rllm_envs.textarena import plugin as textarena
from rllm_envs.verifiers import plugin as verifiers

requires_api = 1


@hookimpl
def rllm_environments() -> Iterator[EnvironmentPlugin[Any]]:
    yield from gymnasium.environments()
    yield from inspect.environments()
    yield from nemo_gym.environments()
    yield from open_spiel.environments()
    yield from openenv.environments()
    yield from reasoning_gym.environments()
    yield from textarena.environments()
    yield from verifiers.environments()


@hookimpl
def rllm_workflows() -> Iterator[WorkflowPlugin[Any]]:
    yield from inspect.workflows()
    yield from open_spiel.workflows()
    yield from verifiers.workflows()
