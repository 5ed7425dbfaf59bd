"""The environments `guess` and `sum`, and how they read a number from a response."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from rllm_core.contracts.environment import Environment, Outcome, Split
from rllm_core.contracts.params import Params
from rllm_core.data.types import Task


class GuessParams(Params):
    prompt: str = (
        "I am thinking of a whole number from 0 to 15. You have five guesses. "
        "I answer each with lower, higher or correct. Reply with a number only."
    )
    """The first message to the player."""


class SumParams(Params):
    largest: int = Field(9, gt=0)
    """Maximum of the two numbers. The minimum is 0."""
    prompt: str = "What is {a} plus {b}? Reply with a number only."
    """The question. {a} and {b} are the numbers."""


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
        guess = parse_integer(action)
        if guess == self._number:
            reward = 1.0 - COST_OF_A_GUESS * (self._guesses - 1)
            return Outcome(reward=reward, done=True, correct=True, metrics={"guesses": self._guesses})
        if self._guesses == GUESSES:
            return Outcome(done=True, correct=False, metrics={"guesses": self._guesses})
        if guess is None:
            return Outcome(observation="?")
        return Outcome(observation="lower" if self._number < guess else "higher")


class Sum(Environment):
    """Environment with reward 1 for the exact sum, else 0. A component without weight shows if it is a number."""

    def __init__(self, params: SumParams) -> None:
        self._prompt = params.prompt

    @classmethod
    def tasks(cls, split: Split, params: SumParams) -> Sequence[Task]:
        numbers = range(params.largest + 1)
        return [Task(id=f"sum-{a}-{b}", data={"a": a, "b": b}, data_source="sum") for a in numbers for b in numbers]

    def reset(self, task: Mapping[str, Any]) -> str:
        self._sum = int(task["a"]) + int(task["b"])
        return self._prompt.replace("{a}", str(task["a"])).replace("{b}", str(task["b"]))

    def step(self, action: str) -> Outcome:
        number = parse_integer(action)
        correct = number == self._sum
        parts = {"correct": float(correct), "number": float(number is not None)}
        return Outcome(reward=parts["correct"], done=True, correct=correct, reward_components=parts)


LONGEST = 9
"""Maximum number of digits. Python itself raises an error for thousands of digits."""
_INTEGER = re.compile(rf"\s*(\d{{1,{LONGEST}}})\s*\.?\s*")


def parse_integer(text: str) -> int | None:
    """Return `text` as an integer, ignoring white space and a final full stop. None if they are not one."""
    return int(match[1]) if (match := _INTEGER.fullmatch(text)) else None


def find_integer(text: str) -> int | None:
    """Return the first sequence of digits in `text` as an integer. None if there is none, or if it is too long."""
    match = re.search(r"\d+", text)
    return int(match[0]) if match and len(match[0]) <= LONGEST else None
