"""`regex` and `format`: responses that regular expressions read."""

from __future__ import annotations

from collections.abc import Sequence

from rllm.builtin.tasks.answers import Answer, AnswerReward, as_text, right_or_wrong
from rllm.builtin.tasks.bounded_regex import SlowPatternError, last_group, matches_whole
from rllm.builtin.tasks.reward_options import FormatParams, RegexParams
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.data.messages import Response


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
