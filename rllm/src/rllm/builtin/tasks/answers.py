"""Shared code of the rewards that compare: the right answer from a task's data, and a score of 1 or 0."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field

from rllm_core.contracts.params import Params
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.data.messages import Response
from rllm_core.errors import ConfigError

Deadline = Annotated[float, Field(gt=0, le=60)]


class AnswerParams(Params):
    """Options of rewards that compare a reply with a column."""

    column: str = Field("answer", min_length=1)
    """Column with the answer, or a list of right answers. Use dots for nested keys, such as reward_model.ground_truth.
    """


Answer = str | int | float | Decimal


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


def right_or_wrong(correct: bool, extracted: str | None, reason: str = "") -> Score:
    """Return a score of 1 or 0, with the extracted answer.

    The metric ``unreadable`` is 1 if the response has no answer. `reason` then explains why.
    """
    metrics = {"unreadable": float(extracted is None)}
    return Score(value=float(correct), correct=correct, extracted=extracted, metrics=metrics, feedback=reason)


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
    """Return a task's answers as a list. Numbers and arrays of numpy become plain ones.

    Raises:
        NoAnswerError: there is none, or an answer is empty, or neither text nor a number.
    """
    found = _plain(value_at(data, column))
    answers = [_plain(each) for each in found] if isinstance(found, list | tuple) else [found]
    if not answers or not all(map(_is_answer, answers)):
        raise NoAnswerError(f"column {column!r} contains {found!r:.80}, which is neither text nor a number")
    if not all(map(str.strip, map(str, answers))):
        raise NoAnswerError(f"column {column!r} contains {found!r:.80}, and an empty response would be right")
    return answers


def check_answers(data: Mapping[str, Any], column: str, option: str, read: Callable[[Answer], object] = str) -> None:
    """Check that a task has answers that a reward can read.

    Args:
        data: the task's data.
        column: the column with the answers.
        option: the option that sets the column, for the hint.
        read: reads an answer, and raises NoAnswerError if the reward cannot compare with it.

    Raises:
        ConfigError: there is no answer, or an answer cannot be read.
    """
    try:
        answers = answers_in(data, column)
    except NoAnswerError as error:
        remedy = "Fill it in, or set rllm.algorithm.on_missing_reward=drop." if column in data else f"Set {option}."
        raise ConfigError("missing-column", f"A task has no answer to compare with: {error}.", remedy) from error
    try:
        for answer in answers:
            read(answer)
    except NoAnswerError as error:
        raise ConfigError(
            "unreadable-answer",
            f"No response can be right, because column {column!r} contains an answer that cannot be read: {error}.",
            "Change or remove the row, choose a different reward, or set rllm.algorithm.on_missing_reward=drop.",
        ) from error


def as_text(answer: Answer) -> str:
    """Return an answer as a response would write it. Examples are ``42`` for 42.0, which a table makes of 42, and
    ``0.00001`` for 1e-05."""
    if isinstance(answer, float | Decimal):
        return str(int(answer)) if answer == int(answer) else f"{Decimal(str(answer)):f}"
    return str(answer)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _is_answer(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, int | float | Decimal) and math.isfinite(value))
