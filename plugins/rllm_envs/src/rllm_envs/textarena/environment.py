"""`textarena`: a single-player game, one move per turn."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import textarena
from textarena.core import ObservationType

from rllm_core.contracts.environment import Environment, Outcome, Split
from rllm_core.data.messages import Message
from rllm_core.data.types import Task
from rllm_envs.tasks import make_seed_tasks
from rllm_envs.textarena.games import check_game, start_game
from rllm_envs.textarena.isolation import use_random_numbers
from rllm_envs.textarena.options import TextArenaParams

REASON = "Invalid Move: "


class TextArena(Environment):
    """Plays ``{game, options, seed}``. The reward is the game's, when it ends; 1 or more is correct."""

    def __init__(self, params: TextArenaParams) -> None:
        self._params = params
        self._numbers = random.Random()
        self._game: textarena.Env | None = None

    @classmethod
    def tasks(cls, split: Split, params: TextArenaParams) -> Sequence[Task]:
        """The games of a split, by seed.

        Raises:
            ConfigError: the game cannot be played here, or its options are wrong.
        """
        check_game(params)
        return make_seed_tasks(split, params, params.game, game=params.game, options=params.options)

    def reset(self, task: Mapping[str, Any]) -> str | Sequence[Message]:
        self._game = start_game(task["game"], task["options"], seed=task["seed"], numbers=self._numbers)
        rules = self._read_messages()
        if self._params.system_prompt is None:
            return rules
        return [{"role": "system", "content": self._params.system_prompt}, {"role": "user", "content": rules}]

    def step(self, action: str) -> Outcome:
        assert self._game is not None
        with use_random_numbers(self._numbers):
            done, _ = self._game.step(action)
        if not done:
            return Outcome(observation=self._read_messages())
        rewards, infos = self._game.close()
        reward = _reward(rewards[0], infos[0])
        metrics = {"turns": float(infos[0]["turn_count"]), "invalid": float(infos[0]["invalid_move"])}
        return Outcome(reward=reward, done=True, correct=reward >= 1.0, metrics=metrics)

    def _read_messages(self) -> str:
        """Return the game's messages since the last turn, without the agent's own messages.

        Some games of 0.7.4 put the agent's text into the field for the kind of a message.
        """
        assert self._game is not None
        with use_random_numbers(self._numbers):
            _, messages = self._game.get_observation()
        own = ObservationType.PLAYER_ACTION
        said = (text for _, text, kind in messages if isinstance(kind, ObservationType) and kind is not own)
        return "\n".join(map(str, said)) or "…"


def _reward(reward: Any, info: Mapping[str, Any]) -> float:
    """A game's reward. Four games of 0.7.4 exchange reward and reason when a move is invalid."""
    if isinstance(reward, str):
        reward = str(info["reason"]).removeprefix(REASON)
    return float(reward)
