"""`exact`: the response is the answer."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from rllm.builtin.tasks.answers import Answer, AnswerReward, as_text, right_or_wrong
from rllm.builtin.tasks.reward_options import ExactParams
from rllm_core.contracts.reward import Score
from rllm_core.data.messages import Response


class Exact(AnswerReward):
    """Reward 1 if the normalized response equals a normalized answer."""

    def __init__(self, params: ExactParams) -> None:
        super().__init__(params.column)
        self._ignore_case = params.ignore_case

    def score(self, response: Response, answers: Sequence[Answer]) -> Score:
        said = self._normalized(response.content)
        return right_or_wrong(any(said == self._normalized(as_text(each)) for each in answers), said)

    def _normalized(self, text: str) -> str:
        plain = " ".join(unicodedata.normalize("NFKC", text).split())
        plain = plain.removesuffix(".").rstrip() or plain
        return plain.casefold() if self._ignore_case else plain
