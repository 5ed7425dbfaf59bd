"""Options of the environment `gymnasium`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rllm_envs.seeds import SeedParams


class GymnasiumParams(SeedParams):
    """Options of ``gymnasium``."""

    id: str = Field(min_length=1)
    """Id of the environment, such as FrozenLake-v1, or MODULE:ID, which imports the module first."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `gymnasium.make`, such as {is_slippery: false}."""
    prompt: str | None = Field(None, min_length=1)
    """Rules of the game, before the first observation. The default lists the actions."""
    template: str | None = Field(None, min_length=1)
    """Message of each turn, such as 'You are at {observation}.' {observation} is JSON, {picture} is the text of the
    render mode ansi, {reward} is the last reward. The default is the picture, or the observation."""
    actions: list[str] = Field(default_factory=list)
    """Names of discrete actions, in the order of their numbers, such as [left, right]. By default, the environments of
    toy_text have names, and other discrete actions are numbers."""
    solved_at: float | None = None
    """Sum of rewards at which an episode counts as solved. By default, any sum above 0."""
