"""Resolve options by asking the worker processes, because only they import reasoning-gym."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from rllm_core.errors import ConfigError
from rllm_envs.reasoning_gym.options import ReasoningGymParams
from rllm_envs.reasoning_gym.processes import TooLongError, ask

SECONDS_TO_SET_UP = 300.0
"""Time limit in seconds of CPU time. A generator may read files or prepare all its entries."""


def check(params: ReasoningGymParams) -> None:
    """Raise ConfigError for a generator, option, level or system prompt that reasoning-gym does not have."""
    for level in params.levels or (params.level,):
        config_of(params, level)
    system_prompt_of(params)


def config_of(params: ReasoningGymParams, level: int | None = None) -> dict[str, Any]:
    """The options of the generator, as JSON, with those that levels set. `level` replaces the option of that name.

    Raises:
        ConfigError: reasoning-gym refuses them.
    """
    question = params.model_dump(include={"generator", "config", "level", "curriculum", "seed"})
    if level is not None:
        question["level"] = level
    question |= {"ask": "config", "size": params.train_size, "seconds": SECONDS_TO_SET_UP}
    try:
        config: dict[str, Any] = ask(question)
    except TooLongError as error:
        raise ConfigError(
            "generator-too-slow",
            f"Generator {params.generator!r} takes more than {SECONDS_TO_SET_UP:.0f} seconds to set up.",
            "Choose a smaller rllm.env.env_args.train_size, or other options.",
        ) from error
    return config


def system_prompt_of(params: ReasoningGymParams) -> str | None:
    """Return the system message. Text with white space is used unchanged; a single word names a reasoning-gym prompt.

    Raises:
        ConfigError: reasoning-gym has no prompt of this name.
    """
    prompt = params.system_prompt
    return prompt if prompt is None or len(prompt.split()) > 1 else _named_prompt(prompt)


@lru_cache
def _named_prompt(name: str) -> str:
    return str(ask({"ask": "system_prompt", "name": name, "seconds": SECONDS_TO_SET_UP}))
