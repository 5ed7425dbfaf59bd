"""The reward `length`, a penalty for responses that are longer or shorter than the target."""

from __future__ import annotations

from pydantic import Field

from rllm_core.contracts.params import Params
from rllm_core.contracts.reward import Rollout, Score


class LengthParams(Params):
    """Options of ``length``."""

    target: int = Field(gt=0)
    """Number of tokens that a response should have."""
    shorter_is_fine: bool = False
    """Do not penalize responses below the target."""


class Length:
    """Reward from 0 to -1: minus the distance of the response's length from the target, divided by the target."""

    def __init__(self, params: LengthParams) -> None:
        self._params = params

    def __call__(self, rollout: Rollout) -> Score:
        target = self._params.target
        off = rollout.response_tokens - target
        if off < 0 and self._params.shorter_is_fine:
            off = 0
        return Score(value=0.0 if off == 0 else -min(1.0, abs(off) / target))
