"""`exact`: the whole response is the answer."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from rllm.builtin.tasks.answers import Answer, AnswerParams, AnswerReward, as_text, right_or_wrong
from rllm.builtin.tasks.final_answers import remove_reasoning
from rllm_core.contracts.reward import Score
from rllm_core.data.messages import Response


class ExactParams(AnswerParams):
    """Options of ``exact``."""

    ignore_case: bool = True
    """Ignore the difference between upper and lower case."""


class Exact(AnswerReward):
    """Reward of 1 if the response without its reasoning is an answer.

    Ignores additional white space, the width of characters, one final full stop, and case if the option is set.
    Everything else must be the same character by character, so ``The answer is 42`` is not ``42``.
    """

    def __init__(self, params: ExactParams) -> None:
        super().__init__(params.column)
        self._ignore_case = params.ignore_case

    def score(self, response: Response, answers: Sequence[Answer]) -> Score:
        said = self._normalize(remove_reasoning(response.content))
        return right_or_wrong(any(said == self._normalize(as_text(each)) for each in answers), said)

    def _normalize(self, text: str) -> str:
        plain = " ".join(unicodedata.normalize("NFC", "".join(map(_narrow, text))).split())
        plain = plain.removesuffix(".").rstrip() or plain
        return plain.casefold() if self._ignore_case else plain


def _narrow(character: str) -> str:
    """Return a character in its usual form. A superscript stays one, because 10² is not 102."""
    if unicodedata.decomposition(character).startswith(("<super>", "<sub>", "<fraction>", "<circle>")):
        return character
    return unicodedata.normalize("NFKC", character)
