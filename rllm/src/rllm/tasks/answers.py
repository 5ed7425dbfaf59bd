"""Shared code of the rewards that compare: the right answer from a task's data, and a score of 1 or 0."""

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
    """A task's data has no usable answer. The message gives the reason."""


class AnswerReward(ABC):
    """Base class of rewards that compare a response with a column's answers. No answer means no reward."""

    def __init__(self, column: str) -> None:
        self._column = column

    def __call__(self, rollout: Rollout) -> Score:
        try:
            return self.score(rollout.response, answers_in(rollout.data, self._column))
        except NoAnswerError as error:
            return Score(value=None, feedback=str(error))

    @abstractmethod
    def score(self, response: Response, answers: Sequence[Answer]) -> Score:
        """Return the score of a response. `answers` has one or more entries, and each of them is right.

        Raises:
            NoAnswerError: this reward cannot read an answer.
        """


def right_or_wrong(correct: bool, extracted: str | None) -> Score:
    """Return a score of 1 or 0, with the extracted answer."""
    return Score(value=float(correct), correct=correct, extracted=extracted)


def value_at(data: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column. If no column has the whole name, the dots in it are keys of nested mappings.

    Raises:
        NoAnswerError: the column does not exist.
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
    """Return a task's answers unchanged, as a list.

    Raises:
        NoAnswerError: there is none, or an answer is neither text nor a number.
    """
    found = value_at(data, column)
    answers = list(found) if isinstance(found, list | tuple) else [found]
    if not answers or not all(_is_answer(each) for each in answers):
        raise NoAnswerError(f"column {column!r} contains {found!r:.80}, which is neither text nor a number")
    return answers


def check_answers(data: Mapping[str, Any], column: str, option: str) -> None:
    """Check that a task has an answer.

    Args:
        data: the task's data.
        column: the column with the answers.
        option: the option that sets the column, for the hint.

    Raises:
        ConfigError: there is no answer.
    """
    try:
        answers_in(data, column)
    except NoAnswerError as error:
        raise ConfigError(
            "missing-column", f"A task has no answer to compare with: {error}.", f"Set {option}."
        ) from error


def as_text(answer: Answer) -> str:
    """Return an answer as a response would write it. For example, a table may turn 42 into 42.0: return ``42``."""
    return str(int(answer)) if isinstance(answer, float) and answer.is_integer() else str(answer)


def _is_answer(value: Any) -> bool:
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
