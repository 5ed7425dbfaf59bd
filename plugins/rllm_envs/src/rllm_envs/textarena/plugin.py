"""The environment `textarena`, with options. Its packages are imported only if a run needs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_envs.extra import Extra
from rllm_envs.seeds import SeedParams

_EXTRA = Extra("textarena", ("textarena",))


class TextArenaParams(SeedParams):
    """Options of ``textarena``."""

    game: str = Field(min_length=1, description="Name of the game, such as GuessTheNumber-v0.")
    options: dict[str, Any] = Field(
        default_factory=dict, description="Options of the game, such as {max_number: 10, max_turns: 4}."
    )
    system_prompt: str | None = Field(None, min_length=1, description="System message.")


def environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name="textarena",
        summary="TextArena's single-player games, for example textarena:GuessTheNumber-v0.",
        params=TextArenaParams,
        load=_EXTRA.load_from("rllm_envs.textarena.environment", "TextArena"),
        check=_EXTRA.call_lazily("rllm_envs.textarena.games", "check_game"),
        family_option="game",
        # Some games search for seconds before their first turn.
        blocking=True,
        # A prompt contains all turns until then, many with a board.
        defaults={
            "rllm.workflow.name": "multi_turn_workflow",
            "data.max_prompt_length": 8192,
            "data.max_response_length": 256,
        },
    )
