"""Options of the environment `textarena`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rllm_envs.seeds import SeedParams


class TextArenaParams(SeedParams):
    """Options of ``textarena``."""

    game: str = Field(min_length=1)
    """Name of the game, such as GuessTheNumber-v0."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the game, such as {max_number: 10, max_turns: 4}."""
    system_prompt: str | None = Field(None, min_length=1)
    """System message."""
