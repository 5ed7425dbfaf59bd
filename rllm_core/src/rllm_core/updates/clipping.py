"""Which sampled tokens a policy loss clips."""

from __future__ import annotations

from torch import Tensor

from rllm_core.algorithms.options import PpoParams
from rllm_core.contracts.loss import LossInput
from rllm_core.updates.losses import importance_ratio


def surrogate_clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """(n_sampled,) bool, tokens of which `clipped_surrogate` takes the clipped value.

    These are ratios above 1 + high where A > 0, and below 1 - low where A < 0. verl counts them as
    ``actor/pg_clipfrac``, TRL as ``clip_ratio/region_mean``.
    """
    return ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))


def ppo_clipped(inputs: LossInput, params: PpoParams) -> Tensor:
    """(n_sampled,) bool, tokens that `ppo` clips, those of its dual clip included."""
    ratio = importance_ratio(inputs)
    clipped = surrogate_clipped(ratio, inputs.advantages, *params.eps_low_high)
    if params.clip_ratio_c is None:
        return clipped
    return clipped | ((inputs.advantages < 0) & (ratio > params.clip_ratio_c))
