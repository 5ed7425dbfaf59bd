"""What an agent returns: a reward, an answer, and what is known of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from rllm_core.errors import RolloutError

FIELDS = ("reward", "answer", "correct", "metrics")


@dataclass(frozen=True, kw_only=True)
class Returned:
    """An agent's own words on its attempt."""

    reward: float | None = None
    """Of every role; None: it says none for all."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """By role, where they differ."""
    answer: str | None = None
    """What rewards of ``rllm.reward`` look at in place of the last reply."""
    correct: bool | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


def read_returned(value: Any) -> Returned:
    """Take JSON data apart: a number is a reward, text an answer, an object has some of `FIELDS`.

    Raises:
        RolloutError: it is something else.
    """
    match value:
        case None:
            return Returned()
        case str():
            return Returned(answer=value)
        case Mapping():
            return _of_object(value)
        case _:
            return Returned(reward=_number("what the agent returned", value))


def _of_object(value: Mapping[str, Any]) -> Returned:
    if unknown := sorted(set(value) - {*FIELDS}):
        raise RolloutError(
            f"The agent returned {', '.join(map(repr, unknown))}, which are not fields of a result.",
            f"Return a number, text, or a dict with some of {', '.join(FIELDS)}.",
        )
    reward, answer, correct = value.get("reward"), value.get("answer"), value.get("correct")
    by_role = reward if isinstance(reward, Mapping) else {}
    if not isinstance(correct, bool | None):
        raise RolloutError(f"The agent returned {correct!r:.80} as `correct`.", "Give true or false.")
    metrics = value.get("metrics") or {}
    if not isinstance(metrics, Mapping):
        raise RolloutError(f"The agent returned {metrics!r:.80} as `metrics`.", "Give numbers by name.")
    return Returned(
        reward=None if reward is None or by_role else _number("reward", reward),
        rewards={role: _number(f"reward of {role}", each) for role, each in by_role.items()},
        answer=None if answer is None else str(answer),
        correct=correct,
        metrics={name: _number(name, each) for name, each in metrics.items()},
    )


def _number(name: str, value: Any) -> float:
    if not isinstance(value, Real) or not math.isfinite(value):
        raise RolloutError(f"The agent returned {value!r:.80} as {name}.", "Give a finite number.")
    return float(value)
