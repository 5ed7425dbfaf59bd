"""The reward `choice`, for the letter of the last option in the response."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rllm.tasks.answers import Answer, AnswerReward, NoAnswerError, right_or_wrong
from rllm.tasks.reward_options import ChoiceParams
from rllm_core.contracts.reward import Score
from rllm_core.data.messages import Response


class Choice(AnswerReward):
    """Reward of 1 if the last option that the response names is the right one.

    An option is a capital letter that is not part of a word, such as ``B``, ``B)`` or ``\\boxed{B}``, or any letter in
    parentheses, such as ``(b)``.
    """

    def __init__(self, params: ChoiceParams) -> None:
        super().__init__(params.column)
        self._letters = params.letters
        letters = params.letters
        # A letter with an apostrophe after it, straight or curly, is part of a word, such as "A's".
        self._option = re.compile(rf"\(([{letters}{letters.lower()}])\)|(?<!\w)([{letters}])(?![\w'\u2019])")

    def score(self, response: Response, answers: Sequence[Answer]) -> Score:
        named = self._last_named(response.content)
        return right_or_wrong(named in [self._right(each) for each in answers], named)

    def _right(self, answer: Answer) -> str:
        if isinstance(answer, int) and 0 <= answer < len(self._letters):
            return self._letters[answer]
        named = self._last_named(answer) or self._last_named(answer.upper()) if isinstance(answer, str) else None
        if named is None:
            raise NoAnswerError(f"column {self._column!r} contains {answer!r:.80}, which is none of {self._letters}")
        return named

    def _last_named(self, text: str) -> str | None:
        found = [match[1] or match[2] for match in self._option.finditer(text)]
        return found[-1].upper() if found else None
