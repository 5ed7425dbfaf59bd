"""The environment `reasoning_gym`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rllm_core.contracts.environment import Environment, EnvironmentPlugin
from rllm_envs.installed import require
from rllm_envs.reasoning_gym.options import ReasoningGymParams


def _reasoning_gym() -> Callable[[Any], Environment]:
    require("reasoning_gym", "reasoning-gym")
    from rllm_envs.reasoning_gym.environment import ReasoningGym

    return ReasoningGym


def _check(params: ReasoningGymParams) -> None:
    require("reasoning_gym", "reasoning-gym")
    from rllm_envs.reasoning_gym.resolving import check

    check(params)


def environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name="reasoning_gym",
        summary="Questions of a generator of reasoning-gym: reasoning_gym:chain_sum, and a hundred others.",
        params=ReasoningGymParams,
        load=_reasoning_gym,
        check=_check,
        family_option="generator",
        # A worker is a process: reset and step wait for it.
        blocking=True,
        best_possible={"reward": 1.0},
        defaults={"rllm.workflow.name": "single_turn_workflow", "data.max_response_length": 512},
    )
