"""Losses of ours that the service computes itself: by which name, with which numbers.

Aggregation and rollout correction are a weight of every token's loss, never negative. All but `dro` are proportional to
the advantage (or to the weight of a token's log-prob), so the weight goes into it, and the service's sum over tokens is
our loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.loss import LossPlugin


@dataclass(frozen=True, kw_only=True)
class NativeLoss:
    """How the service is asked for one of our losses."""

    name: str
    """The service's name of it."""
    config: Mapping[str, float] = field(default_factory=dict)
    weights_of: str = "advantages"
    """What the service multiplies a token's loss by: ``advantages``, or ``weights`` of a log-prob."""
    reads_advantages: bool = True
    """Whether it depends on our advantages; if not every sampled token counts alike."""
    sequence_ratio: bool = False
    """Whether it must be told which tokens make a row's ratio."""


def native_loss(choice: PluginChoice[LossPlugin[Any]]) -> NativeLoss | None:
    """The service's form of a loss; None when only `forward_backward_custom` can compute it.

    Known by its qualified name: somebody else's loss of the name ``ppo`` is another one.
    """
    params: Any = choice.params
    match choice.qualified_name:
        case "rllm-core/ppo" if params.clip_ratio_c is None:
            return NativeLoss(name="ppo", config=_bounds(*params.eps_low_high))
        case "rllm-core/importance_sampling":
            return NativeLoss(name="importance_sampling")
        case "rllm-core/reinforce":
            return NativeLoss(name="cross_entropy", weights_of="weights")
        case "rllm-estimators/cispo":
            return NativeLoss(name="cispo", config=_bounds(*params.eps_low_high))
        case "rllm-estimators/gspo":
            bounds = _bounds(params.sequence_eps_clip, params.sequence_eps_clip_high)
            return NativeLoss(name="gspo", config=bounds, sequence_ratio=True)
        case "rllm-estimators/cross_entropy":
            return NativeLoss(name="cross_entropy", weights_of="weights", reads_advantages=False)
        case "rllm-estimators/dro":
            return NativeLoss(name="dro", config={"beta": params.beta})
    return None


def columns_of(
    loss: NativeLoss,
    advantages: NDArray[np.float32],
    old_logprobs: NDArray[np.float32],
    loss_mask: NDArray[np.bool_],
    weights: NDArray[np.float32],
) -> dict[str, NDArray[np.float32]]:
    """The inputs of a loss, each (n_token,), where `weights` of tokens that do not count are 0."""
    weighted = weights * advantages if loss.reads_advantages else weights
    if loss.weights_of == "weights":
        return {"weights": weighted}
    columns = {"logprobs": old_logprobs, "advantages": weighted}
    if loss.sequence_ratio:
        columns["sequence_ratio_mask"] = loss_mask.astype(np.float32)
    return columns


def _bounds(low: float, high: float) -> dict[str, float]:
    """Bounds of the ratio, where ours are distances from 1."""
    # No ratio is below 0: a bound there is none, and the service refuses numbers below.
    return {"clip_low_threshold": max(0.0, 1 - low), "clip_high_threshold": 1 + high}
