"""verl's own policy losses whose names no other rllm package uses.

If both have a loss with the same name, rllm's loss is used. rllm's losses work as per-role losses, and give the same
numbers on every backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rllm_core.algorithms.options import ClipParams
from rllm_core.contracts.loss import LossPlugin, PolicyLoss
from rllm_core.contracts.plugin import NoParams

if TYPE_CHECKING:
    from pydantic import BaseModel

ONLY_ON = frozenset({"verl"})
NAMES = ("vanilla", "gpg", "geo_mean")


class Vanilla(ClipParams):
    clip_ratio_c: float = Field(3.0, gt=1, description="Upper bound of the ratio for negative advantages.")


def actor_fields(params: BaseModel) -> dict[str, Any]:
    """Return a loss's options as fields of verl's `ActorConfig`."""
    if not isinstance(params, ClipParams):
        return {}
    low, high = params.eps_low_high
    fields = {"clip_ratio": low, "clip_ratio_low": low, "clip_ratio_high": high}
    return fields | ({"clip_ratio_c": params.clip_ratio_c} if isinstance(params, Vanilla) else {})


def verl_losses() -> Iterator[LossPlugin[Any]]:
    """Yield one plugin spec per loss."""
    yield _loss("vanilla", "verl's PPO: clipped importance ratio, also for negative advantages.", Vanilla)
    yield replace(_loss("gpg", "verl's GPG: log-prob times advantage.", NoParams), has_ratio=False)
    yield _loss("geo_mean", "verl's GMPO: geometric mean of a sequence's clipped ratios.", ClipParams)


def _loss(name: str, summary: str, params: type[BaseModel]) -> LossPlugin[Any]:
    return LossPlugin(name=name, summary=summary, params=params, load=_loader(name), only_on=ONLY_ON)


def _loader(name: str) -> Callable[[], PolicyLoss]:
    def load() -> PolicyLoss:
        from rllm_verl.verl_policy_loss import VerlPolicyLoss

        return VerlPolicyLoss(name)

    return load
