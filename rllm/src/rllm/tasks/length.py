"""`length`: what a reply costs that is longer or shorter than wanted."""

from __future__ import annotations

from rllm.tasks.reward_options import LengthParams
from rllm_core.contracts.reward import Rollout, Score


class Length:
    """From 0 at the target down to -1, in proportion to how far off the reply is, in shares of the target."""

    def __init__(self, params: LengthParams) -> None:
        self._params = params

    def __call__(self, rollout: Rollout) -> Score:
        target = self._params.target
        off = rollout.response_tokens - target
        if off < 0 and self._params.shorter_is_fine:
            off = 0
        return Score(value=0.0 if off == 0 else -min(1.0, abs(off) / target))
