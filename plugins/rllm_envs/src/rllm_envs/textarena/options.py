"""Options of the environment `textarena`, separate from the environment so that listing plugins imports nothing."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rllm_core.contracts.plugin import Params
from rllm_envs.seeds import LARGEST_SPLIT, SEEDS


class TextArenaParams(Params):
    """Options of ``textarena``."""

    game: str = Field(min_length=1, description="Name of the game, such as GuessTheNumber-v0.")
    options: dict[str, Any] = Field(
        default_factory=dict, description="Options of the game, such as {max_number: 10, max_turns: 4}."
    )
    train_size: int = Field(1000, gt=0, le=LARGEST_SPLIT, description="Number of training games.")
    val_size: int = Field(64, ge=0, le=LARGEST_SPLIT, description="Number of validation games.")
    seed: int = Field(0, ge=0, lt=SEEDS, description="Seed of the first game. Each further game has the next seed.")
    system_prompt: str | None = Field(None, min_length=1, description="System message.")
