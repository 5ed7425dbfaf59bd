"""`regex` and `format`: responses that regular expressions read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator

from rllm.builtin.tasks.answers import Answer, AnswerParams, AnswerReward, Deadline, as_text, right_or_wrong
from rllm.builtin.tasks.bounded_regex import SlowPatternError, last_group, matches_whole
from rllm_core.contracts.params import Params
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.data.messages import Response


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"it is not a regular expression: {error}") from error
    return pattern


def _has_a_group(pattern: str) -> str:
    if not re.compile(pattern).groups:
        raise ValueError("it has no group: put the compared part in (parentheses)")
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles)]


class RegexParams(AnswerParams):
    """Options of ``regex``."""

    pattern: Annotated[Pattern, AfterValidator(_has_a_group)]
    r"""Pattern to find, such as 'answer is (\d+)'. The first group of the last match is the answer."""
    deadline: Deadline = 5.0
    """Seconds that one match may take before it is killed."""


class FormatParams(Params):
    """Options of ``format``."""

    pattern: Pattern
    """Pattern that the whole response must match, including its reasoning. White space around it is ignored. A dot
    matches line breaks too."""
    deadline: Deadline = 5.0
    """Seconds that one match may take before it is killed."""


class Regex(AnswerReward):
    """Reward of 1 if the pattern's last match is an answer, ignoring white space around it."""

    def __init__(self, params: RegexParams) -> None:
        super().__init__(params.column)
        self._params = params

    def score(self, response: Response, answers: Sequence[Answer]) -> Score:
        try:
            found = last_group(self._params.pattern, response.content, self._params.deadline)
        except SlowPatternError as error:
            return Score(value=None, feedback=str(error))
        said = None if found is None else found.strip()
        return right_or_wrong(said in [as_text(each).strip() for each in answers], said)


class Format:
    """Reward 1 if the whole response matches the pattern. It does not determine if the task is solved."""

    def __init__(self, params: FormatParams) -> None:
        self._params = params

    def __call__(self, rollout: Rollout) -> Score:
        try:
            matches = matches_whole(self._params.pattern, rollout.response.text.strip(), self._params.deadline)
        except SlowPatternError as error:
            return Score(value=None, feedback=str(error))
        return Score(value=float(matches))
