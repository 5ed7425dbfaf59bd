"""`regex` and `format`: replies that regular expressions read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rllm_core.contracts.reward import Attempt, Score
from rllm_core.data.messages import Reply
from rllm_tasks.answers import Answer, AnswerReward, as_text, right_or_wrong
from rllm_tasks.reward_options import FormatParams, RegexParams


class Regex(AnswerReward):
    """1 where what the pattern finds last is an answer, white space around it aside."""

    def __init__(self, params: RegexParams) -> None:
        super().__init__(params.column)
        self._pattern = re.compile(params.pattern)

    def score(self, reply: Reply, answers: Sequence[Answer]) -> Score:
        found = [match[1] for match in self._pattern.finditer(reply.content) if match[1] is not None]
        said = found[-1].strip() if found else None
        return right_or_wrong(said in [as_text(each).strip() for each in answers], said)


class Format:
    """1 where the whole reply matches the pattern. It does not say whether the task is solved."""

    def __init__(self, params: FormatParams) -> None:
        self._pattern = re.compile(params.pattern, re.DOTALL)

    def __call__(self, attempt: Attempt) -> Score:
        return Score(value=float(self._pattern.fullmatch(attempt.reply.text.strip()) is not None))
