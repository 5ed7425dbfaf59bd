"""An environment of OpenEnv. Its reset may ask for a failure."""

from __future__ import annotations

import os
import random
from typing import Any

from openenv.core.env_server import Action, Environment, Observation, State, create_app
from pydantic import Field

SESSIONS = 2
TASKS = {"train": 5, "test": 3}


class Guess(Action):
    digit: int = Field(ge=0, le=9, description="your guess")


class Seen(Observation):
    text: str


class Guessing(Environment[Guess, Seen, State]):
    """Guess a digit in three turns."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str = "",
        index: int = 0,
        fails: str = "",
        **kwargs: Any,
    ) -> Seen:
        if fails == "reset":
            raise RuntimeError("there is no board")
        self._fails, self._turns = fails, 0
        self._digit = index if split else random.Random(seed).randrange(10)
        return Seen(text=f"Guess a digit, {split or 'please'}.")

    def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        self._turns += 1
        if self._fails == "step":
            raise RuntimeError("the board is gone")
        if self._fails == "server":
            os._exit(3)
        if self._fails == "nan":
            return Seen(text="", reward=float("nan"), done=self._turns == 2)
        right = action.digit == self._digit
        hint = "right" if right else "too low" if action.digit < self._digit else "too high"
        reward = None if self._fails == "reward" else 1.0 / self._turns if right else -0.25
        return Seen(text=f"{action.digit} is {hint}.", reward=reward, done=right or self._turns == 3)

    @property
    def state(self) -> State:
        return State(step_count=self._turns)

    def num_tasks(self, split: str) -> int:
        return TASKS[split]


app = create_app(Guessing, Guess, Seen, max_concurrent_envs=SESSIONS, env_name="guessing")


class Say(Action):
    message: str
    loud: bool = False


class Echo(Environment[Say, Seen, State]):
    """Repeats a message. Longer messages get higher rewards."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Seen:
        return Seen(text="Say something.")

    def step(self, action: Say, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        return Seen(
            text=action.message.upper() if action.loud else action.message, reward=len(action.message) / 10, done=True
        )

    @property
    def state(self) -> State:
        return State()


echo = create_app(Echo, Say, Seen, max_concurrent_envs=SESSIONS)
