"""`math`: the response and the answer are the same mathematics."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache

from rllm.builtin.tasks.answers import Answer, AnswerReward, NoAnswerError, as_text, right_or_wrong
from rllm.builtin.tasks.math_keys import write_forms
from rllm.builtin.tasks.reward_options import MathParams
from rllm.builtin.tasks.worker_pool import WorkerPool
from rllm_core.contracts.reward import Score
from rllm_core.data.messages import Response
from rllm_serving.line_process import DiedError

MOST_WORKERS = 8
LONGEST_RESPONSE = 100_000
"""Number of characters at the end of a response that are parsed. The answer comes last, and parsing is slow."""


@cache
def _pool() -> WorkerPool:
    """Return the pool shared by all rewards of the process, because each worker loads sympy into memory."""
    return WorkerPool("rllm.builtin.tasks.math_worker", min(MOST_WORKERS, os.cpu_count() or 1))


def read_math(answer: Answer) -> str:
    """Return an answer as text.

    Raises:
        NoAnswerError: it contains nothing to read, such as ``$$``.
    """
    text = as_text(answer)
    if not write_forms(text):
        raise NoAnswerError(f"{text!r:.80} has no mathematics")
    return text


class Math(AnswerReward):
    """Reward of 1 if math-verify finds the response's answer equal to the right one (``0.5``, ``\\frac{1}{2}``).

    Separate processes compare the answers. A process that exceeds the deadline is killed, and the reward is missing.
    """

    def __init__(self, params: MathParams) -> None:
        super().__init__(params.column)
        self._deadline = params.deadline

    def score(self, response: Response, answers: Sequence[Answer]) -> Score:
        texts = [read_math(each) for each in answers]
        question = {"said": response.content[-LONGEST_RESPONSE:], "answers": texts, "seconds": self._deadline}
        try:
            compared = _pool().ask(question)
        except DiedError as error:
            return Score(
                value=None,
                feedback=f"comparing the response with {texts[0]!r:.80} takes over {self._deadline:g} s ({error})",
            )
        if "problem" in compared:
            return Score(value=None, feedback=compared["problem"])
        return right_or_wrong(compared["correct"], compared["extracted"])
