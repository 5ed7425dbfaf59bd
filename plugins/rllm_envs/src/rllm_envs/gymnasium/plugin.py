"""The environment `gymnasium`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rllm_core.contracts.environment import Environment, EnvironmentPlugin
from rllm_envs.gymnasium.options import GymnasiumParams
from rllm_envs.installed import require


def _gymnasium() -> Callable[[Any], Environment]:
    require("gymnasium", "gymnasium")
    from rllm_envs.gymnasium.environment import Gymnasium

    return Gymnasium


def _check(params: GymnasiumParams) -> None:
    require("gymnasium", "gymnasium")
    from rllm_envs.gymnasium.environment import check_environment

    check_environment(params)


def environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name="gymnasium",
        summary="Environments of Gymnasium as text, for example gymnasium:FrozenLake-v1.",
        params=GymnasiumParams,
        load=_gymnasium,
        check=_check,
        family_option="id",
        # An environment may simulate for long between two turns.
        blocking=True,
        # A prompt contains all turns until then.
        defaults={
            "rllm.workflow.name": "multi_turn_workflow",
            "data.max_prompt_length": 8192,
            "data.max_response_length": 64,
        },
    )
