"""The environment `gymnasium`, with options. Its packages are imported only if a run needs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_envs.extra import Extra
from rllm_envs.seeds import SeedParams

_EXTRA = Extra("gymnasium", ("gymnasium",))


class GymnasiumParams(SeedParams):
    """Options of ``gymnasium``."""

    id: str = Field(
        min_length=1,
        description="Id of the environment, such as FrozenLake-v1, or MODULE:ID, which imports the module first.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Arguments of `gymnasium.make`, such as {is_slippery: false}."
    )
    prompt: str | None = Field(
        None,
        min_length=1,
        description="Rules of the game, before the first observation. The default lists the actions.",
    )
    template: str | None = Field(
        None,
        min_length=1,
        description="Message of each turn, such as 'You are at {observation}.' {observation} is JSON, {picture} is the "
        "text of the render mode ansi, {reward} is the last reward. The default is the picture, or the observation.",
    )
    actions: list[str] = Field(
        default_factory=list,
        description="Names of discrete actions, in the order of their numbers, such as [left, right]. Known for the "
        "environments of toy_text. Other discrete actions are numbers.",
    )
    solved_at: float | None = Field(
        None, description="Sum of rewards at which an episode counts as solved. By default, any sum above 0."
    )


def environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name="gymnasium",
        summary="Environments of Gymnasium as text, for example gymnasium:FrozenLake-v1.",
        params=GymnasiumParams,
        load=_EXTRA.load_from("rllm_envs.gymnasium.environment", "Gymnasium"),
        check=_EXTRA.call_lazily("rllm_envs.gymnasium.environment", "check_environment"),
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
