"""`guess`: find a number from 0 to 15 in five guesses, told each time whether it is lower or higher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rllm.builtin.environments.numbers import whole_number
from rllm.builtin.environments.options import GuessParams
from rllm_core.contracts.environment import Environment, Outcome, Split
from rllm_core.data.types import Task

NUMBERS = 16
GUESSES = 5
COST_OF_A_GUESS = 0.1


class Guess(Environment):
    """Environment with reward 1 for a hit, minus 0.1 for every guess after the first. 0 if the number is not found."""

    def __init__(self, params: GuessParams) -> None:
        self._prompt = params.prompt
        self._guesses = 0

    @classmethod
    def tasks(cls, split: Split, params: GuessParams) -> Sequence[Task]:
        return [Task(id=f"guess-{n}", data={"number": n}, data_source="guess") for n in range(NUMBERS)]

    def reset(self, task: Mapping[str, Any]) -> str:
        self._number = int(task["number"])
        return self._prompt

    def step(self, action: str) -> Outcome:
        self._guesses += 1
        guess = whole_number(action)
        if guess == self._number:
            reward = 1.0 - COST_OF_A_GUESS * (self._guesses - 1)
            return Outcome(reward=reward, done=True, correct=True, metrics={"guesses": self._guesses})
        if self._guesses == GUESSES:
            return Outcome(done=True, correct=False, metrics={"guesses": self._guesses})
        if guess is None:
            return Outcome(observation="?")
        return Outcome(observation="lower" if self._number < guess else "higher")
