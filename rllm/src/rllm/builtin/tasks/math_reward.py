"""`math`: the response's final answer and the right answer are the same mathematics."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from rllm.builtin.tasks.answers import (
    Answer,
    AnswerParams,
    AnswerReward,
    Deadline,
    NoAnswerError,
    as_text,
    right_or_wrong,
)
from rllm.builtin.tasks.final_answers import BOX, FinalAnswer, closing_brace, find_answer, read_sentence
from rllm.builtin.tasks.math_values import Value, equal_values, needs_process, read_value
from rllm.builtin.tasks.worker_pool import WorkerPool
from rllm_core.contracts.reward import Score
from rllm_core.data.messages import Response
from rllm_serving.line_process import DiedError


class MathParams(AnswerParams):
    """Options of ``math``."""

    deadline: Deadline = 5.0
    """Seconds that one comparison may take before it is killed."""


MOST_WORKERS = 8
MOST_WORDS = 5
"""Maximum length of an answer that is text, split at spaces."""
VERB = re.compile(r"\d|\b(?:is|are|was|were|be|have|has|let|so|we|it)\b", re.IGNORECASE)


@cache
def _pool() -> WorkerPool:
    """Return the pool shared by all rewards of the process, because each worker loads sympy into memory."""
    return WorkerPool("rllm.builtin.tasks.math_worker", min(MOST_WORKERS, os.cpu_count() or 1))


def find_math(text: str) -> FinalAnswer:
    """Return the final answer of a response."""
    return find_answer(text, _is_answer, lambda line: read_sentence(line, _is_answer))


def _is_answer(text: str) -> bool:
    """True if a text is an answer: mathematics, or short text."""
    value = read_value(text)
    if value is None:
        return False
    texts = [item.text for item in value.items or [value] if item.kind == "text"]
    if texts and len(texts) < len(value.items):
        return False
    return all(len(each.split()) <= MOST_WORDS and not VERB.search(each) for each in texts)


def check_key(answer: Answer) -> None:
    """Check that a right answer is right as a response too.

    Raises:
        NoAnswerError: it is not, so that no response may be right.
    """
    value, result = read_math(answer), _result_of(as_text(answer))
    found = find_math(rf"\boxed{{{result}}}")
    if found.text is None or read_value(found.text) != value:
        raise NoAnswerError(
            f"{result!r:.80} is not right as a response: {found.reason or 'it is read differently in a box'}"
        )


def read_math(answer: Answer) -> Value:
    """Return a right answer as a value. A solution before it, as in GSM8K, is ignored.

    Raises:
        NoAnswerError: it contains nothing to read, such as ``$$``.
    """
    text = as_text(answer)
    value = read_value(_result_of(text))
    if value is None:
        raise NoAnswerError(f"{text!r:.80} has no answer that a response can equal")
    return value


def _result_of(text: str) -> str:
    """Return a right answer without its solution, and without text around the only formula in it."""
    result = text.rpartition("####")[2].strip()
    if boxes := list(BOX.finditer(result)):
        end = closing_brace(result, boxes[-1].end() - 1)
        result = result[boxes[-1].end() : end] if end >= 0 else result
    elif re.search(r"[A-Za-z]{2}", result) and len(spans := re.findall(r"(?<![\\$])\$([^$]+)\$", result)) == 1:
        return str(spans[0])
    return result


class Math(AnswerReward):
    """Reward of 1 if the response's final answer is equal to a right one (``0.5``, ``\\frac{1}{2}``).

    Numbers, lists, intervals and text are compared here. Separate processes compare expressions with math-verify. A
    process that exceeds the deadline is killed, and the reward is missing.
    """

    def __init__(self, params: MathParams) -> None:
        super().__init__(params.column)
        self._deadline = params.deadline

    def score(self, response: Response, answers: Sequence[Answer]) -> Score:
        keys = [read_math(each) for each in answers]
        found = find_math(response.content)
        values = [read_value(text) for text in found.all_texts]
        said = [value for value in values if value is not None]
        if not said or len(said) < len(values):
            unreadable = right_or_wrong(False, None, found.reason or "its answer is not one")
            return replace(unreadable, extracted=found.text)
        open_keys = [key for key in keys if any(needs_process(value, key) for value in said)]
        decided = [key for key in keys if key not in open_keys]
        if any(all(equal_values(value, key, _never) for value in said) for key in decided):
            return right_or_wrong(True, found.text)
        if not open_keys:
            return right_or_wrong(False, found.text)
        return self._ask(found, [as_text(each) for each in answers])

    def _ask(self, found: FinalAnswer, keys: list[str]) -> Score:
        try:
            compared = _pool().ask({"said": found.all_texts, "answers": keys, "seconds": self._deadline})
        except DiedError as error:
            why = f"comparing {found.text!r:.80} with {keys[0]!r:.80} takes over {self._deadline:g} s ({error})"
            return Score(value=None, feedback=why)
        if "problem" in compared:
            return Score(value=None, feedback=compared["problem"])
        return right_or_wrong(compared["correct"], found.text)


def _never(first: str, second: str) -> bool:
    raise AssertionError("a process compares expressions")
