"""The environment `minigrid_text`: a room of the package minigrid as text, and one action per turn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import minigrid  # noqa: F401  (it registers its rooms)
from rllm_core.contracts import Environment, Outcome, Split
from rllm_core.data.types import Task

from minigrid_text.options import MinigridTextParams

ACTIONS = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
"""Names of minigrid's actions, in the order of their numbers."""
TURN = "Reply with one of: left, right, forward, pickup, drop, toggle."


class MinigridText(Environment):
    """The agent sees the grid as letters. The reward is minigrid's: near 1 at the goal, less for each step."""

    def __init__(self, params: MinigridTextParams) -> None:
        self._room = gymnasium.make(params.room, max_steps=params.max_steps)

    @classmethod
    def tasks(cls, split: Split, params: MinigridTextParams) -> Sequence[Task]:
        """Return a task for each seed of the room. Training and validation have different seeds."""
        seeds = range(params.seeds) if split == "train" else range(10_000, 10_000 + params.val_seeds)
        return [Task(id=f"{params.room}-{seed}", data={"seed": seed}, data_source="minigrid") for seed in seeds]

    def reset(self, task: Mapping[str, Any]) -> str:
        observation, _ = self._room.reset(seed=task["seed"])
        return f"{observation['mission']}\n{self._picture()}\n{TURN}"

    def step(self, action: str) -> Outcome:
        names = re.findall("|".join(ACTIONS), action.lower())
        number = ACTIONS.index(names[-1] if names else "done")
        _, reward, terminated, truncated, _ = self._room.step(number)
        done = terminated or truncated
        return Outcome(
            observation="" if done else f"{self._picture()}\n{TURN}",
            reward=float(reward),
            done=done,
            correct=reward > 0 if done else None,
        )

    def close(self) -> None:
        self._room.close()

    def _picture(self) -> str:
        """Return the grid as minigrid prints it: two letters for each cell. The agent is an arrow."""
        return str(self._room.unwrapped.pprint_grid())
