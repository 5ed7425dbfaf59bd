"""What the rewards that compare have in common: the right answer from a task's data, and a score of 1 or 0."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from rllm_core.contracts.reward import Rollout, Score
from rllm_core.data.messages import Response
from rllm_core.errors import ConfigError

Answer = str | int | float


class NoAnswerError(Exception):
    """A task's data has no answer that could be compared with; the message says why."""


class AnswerReward(ABC):
    """Compares a reply with the answers of a column. Without an answer the reward is missing."""

    def __init__(self, column: str) -> None:
        self._column = column

    def __call__(self, rollout: Rollout) -> Score:
        try:
            return self.score(rollout.response, answers_in(rollout.data, self._column))
        except NoAnswerError as error:
            return Score(value=None, feedback=str(error))

    @abstractmethod
    def score(self, response: Response, answers: Sequence[Answer]) -> Score:
        """How good a reply is. `answers` has one entry or more, any of which is right.

        Raises:
            NoAnswerError: an answer is none that this reward understands.
        """


def right_or_wrong(correct: bool, extracted: str | None) -> Score:
    """1 or 0, with what was taken for the answer."""
    return Score(value=float(correct), correct=correct, extracted=extracted)


def value_at(data: Mapping[str, Any], column: str) -> Any:
    """What a column holds. Where no column has the whole name, its dots reach into mappings.

    Raises:
        NoAnswerError: it is not there.
    """
    if column in data:
        return data[column]
    value: Any = data
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise NoAnswerError(f"the task's data has no {column!r}; it has {', '.join(sorted(data)) or 'nothing'}")
        value = value[part]
    return value


def answers_in(data: Mapping[str, Any], column: str) -> Sequence[Answer]:
    """The answers of a task, as they stand there.

    Raises:
        NoAnswerError: there is none, or it is neither text nor a number.
    """
    held = value_at(data, column)
    answers = list(held) if isinstance(held, list | tuple) else [held]
    if not answers or not all(_is_answer(each) for each in answers):
        raise NoAnswerError(f"column {column!r} holds {held!r:.80}, which is no answer")
    return answers


def check_answers(data: Mapping[str, Any], column: str, option: str) -> None:
    """Look at the answers of a task.

    Args:
        data: the task's data.
        column: where the answers are.
        option: what says so, for the hint.

    Raises:
        ConfigError: there is none.
    """
    try:
        answers_in(data, column)
    except NoAnswerError as error:
        raise ConfigError(
            "missing-column", f"A task has no answer to compare with: {error}.", f"Set {option}."
        ) from error


def as_text(answer: Answer) -> str:
    """An answer as a reply would say it: 42.0, which a table made of 42, is ``42``."""
    return str(int(answer)) if isinstance(answer, float) and answer.is_integer() else str(answer)


def _is_answer(value: Any) -> bool:
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
