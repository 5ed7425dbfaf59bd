"""The reward `choice`, for the letter of the last option in the response."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rllm.builtin.tasks.answers import Answer, AnswerReward, NoAnswerError, right_or_wrong
from rllm.builtin.tasks.reward_options import ChoiceParams
from rllm_core.contracts.reward import Score
from rllm_core.data.messages import Response

ONLY = re.compile(r"[\W_]*(?:\\(?:boxed|text|textbf|mathbf)\{[\W_]*)*([A-Za-z])[\W_]*")
"""An answer that is a letter, such as ``B``, ``(b)``, ``**B**`` or ``\\boxed{B}``."""
FIRST = re.compile(r"\(?([A-Za-z])[).:\]]\s.*", re.DOTALL)
"""An answer that starts with its letter, such as ``B) Paris``."""
LAST = re.compile(r".*(?:####|\b(?i:answer|option|choice)(?: is)?\b)[\s:]*\(?([A-Za-z])\)?\.?", re.DOTALL)
"""An answer that ends with its letter, such as ``The answer is B.``."""


def read_letter(answer: Answer, letters: str) -> str:
    """Return the letter of a right answer. An integer is an index of `letters`, from 0.

    Raises:
        NoAnswerError: the answer is no letter, such as the text ``A dog``.
    """
    if isinstance(answer, str):
        found = next((match[1] for form in (ONLY, FIRST, LAST) if (match := form.fullmatch(answer.strip()))), "")
        if found and found.upper() in letters:
            return found.upper()
    elif not isinstance(answer, bool) and answer == int(answer) and 0 <= answer < len(letters):
        return letters[int(answer)]
    raise NoAnswerError(f"{answer!r:.80} is none of {letters}")


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
        return right_or_wrong(named in [read_letter(each, self._letters) for each in answers], named)

    def _last_named(self, text: str) -> str | None:
        found = [match[1] or match[2] for match in self._option.finditer(text)]
        return found[-1].upper() if found else None
