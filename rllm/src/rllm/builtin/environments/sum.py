"""`sum`: add two small numbers, one answer, exact match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rllm.builtin.environments.numbers import whole_number
from rllm.builtin.environments.options import SumParams
from rllm_core.contracts.environment import Environment, Outcome, Split
from rllm_core.data.types import Task


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
        number = whole_number(action)
        correct = number == self._sum
        parts = {"correct": float(correct), "number": float(number is not None)}
        return Outcome(reward=parts["correct"], done=True, correct=correct, reward_components=parts)
