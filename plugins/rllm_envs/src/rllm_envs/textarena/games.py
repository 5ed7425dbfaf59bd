"""List TextArena's games, find the games that rllm supports, and start a game."""

from __future__ import annotations

import ast
import random
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

import textarena
from textarena.envs.registration import ENV_REGISTRY
from textarena.wrappers import ActionFormattingWrapper

from rllm_core.errors import ConfigError, did_you_mean
from rllm_envs.textarena.isolation import isolate, use_random_numbers
from rllm_envs.textarena.options import TextArenaParams

PLAIN = "-raw"
"""Ending of a game's name that shows each message once; others repeat them, and the agent's history has them."""
VARIANTS = (PLAIN, "-train")
NEEDS = {
    "nltk": "downloads word lists with NLTK when it starts",
    "EnglishDictionary": "downloads word lists with NLTK when it starts",
    "Jury": "asks a language model at OpenRouter",
    "OpenRouter": "asks a language model at OpenRouter",
    "Sokoban.utils": "makes its rooms in variables that all rollouts share",
}
"""Strings in the source of a game -> why it cannot run next to other games or without a network."""
_importing = Lock()


def single_player_games() -> list[str]:
    """Return the names of the supported single-player games."""
    return sorted(name for name in _names() if _find_obstacle(name) is None)


def check_game(params: TextArenaParams) -> None:
    """Start the game of the options once.

    Raises:
        ConfigError: there is no such game, it cannot be played here, or it refuses its options.
    """
    name, options = params.game, params.options
    if name not in _names():
        raise ConfigError(
            "unknown-choice",
            f"rllm.env.env_args.game: TextArena has no game {name!r}.",
            did_you_mean(name, _names()) or f"Games: {', '.join(single_player_games())}.",
        )
    if reason := _find_obstacle(name):
        raise ConfigError(
            "game-not-playable",
            f"Game {name!r} is not supported: it {reason}.",
            f"Choose one of {', '.join(single_player_games())}.",
        )
    try:
        start_game(name, options, seed=0, numbers=random.Random())
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(
            "environment-options-rejected",
            f"Game {name!r} rejects its options {dict(options)!r}: {reason}.",
            "Change the named option in rllm.env.env_args.options, or remove that key.",
        ) from error


def start_game(name: str, options: Mapping[str, Any], *, seed: int, numbers: random.Random) -> textarena.Env:
    """A game at its first turn.

    Args:
        name: of the game, without the suffix of a variant.
        options: of the game's own.
        seed: of the game.
        numbers: its random numbers, which it seeds; see `use_random_numbers`.
    """
    with _importing:
        import_module(_module(name))
        isolate()
    # What a game draws before it seeds is a function of the seed too.
    numbers.seed(seed)
    with use_random_numbers(numbers):
        game = textarena.make(name + PLAIN, **options)
        game.reset(num_players=1, seed=seed)
    wrapped = ENV_REGISTRY[name].default_wrappers or ()
    return ActionFormattingWrapper(game) if ActionFormattingWrapper in wrapped else game


def _module(name: str) -> str:
    return str(ENV_REGISTRY[name].entry_point).partition(":")[0]


def _names() -> list[str]:
    return [name for name in ENV_REGISTRY if not name.endswith(VARIANTS)]


def _find_obstacle(name: str) -> str | None:
    """Return why a game is not supported. This reads its source, because importing some games downloads files."""
    return _find_obstacle_in_module(_module(name))


@cache
def _find_obstacle_in_module(module: str) -> str | None:
    file = Path(textarena.__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py")
    if not file.exists():
        return "is not part of the installed textarena"
    source = file.read_text(encoding="utf-8")
    if "SinglePlayerState" not in source:
        return "is for several players"
    try:
        ast.parse(source)
    except SyntaxError as error:
        return f"does not load with this Python ({error})"
    return next((does for word, does in NEEDS.items() if word in source), None)
