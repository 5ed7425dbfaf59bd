"""The environment `textarena`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rllm_core.contracts.environment import Environment, EnvironmentPlugin
from rllm_envs.installed import require
from rllm_envs.textarena.options import TextArenaParams


def _textarena() -> Callable[[Any], Environment]:
    require("textarena", "textarena")
    from rllm_envs.textarena.environment import TextArena

    return TextArena


def _check(params: TextArenaParams) -> None:
    require("textarena", "textarena")
    from rllm_envs.textarena.games import check_game

    check_game(params.game, params.options)


def environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name="textarena",
        summary="TextArena's single-player games, for example textarena:GuessTheNumber-v0.",
        params=TextArenaParams,
        load=_textarena,
        check=_check,
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
