"""verl's own policy losses, of those whose names no other package of ours offers.

For names that both have, ours count: they take part in per-role losses, and give the same numbers on every backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rllm_core.contracts.loss import LossPlugin, PolicyLoss
from rllm_core.contracts.plugin import NoParams, Params

if TYPE_CHECKING:
    from pydantic import BaseModel

ONLY_ON = frozenset({"verl"})
NAMES = ("vanilla", "gpg", "geo_mean")


class Clipped(Params):
    eps_clip: float = Field(0.2, gt=0, description="Importance ratios below 1 - eps_clip are clipped.")
    eps_clip_high: float | None = Field(None, gt=0, description="Upper bound 1 + eps_clip_high; null means eps_clip.")


class Vanilla(Clipped):
    clip_ratio_c: float = Field(3.0, gt=1, description="Bound of the ratio where the advantage is negative.")


def actor_fields(params: BaseModel) -> dict[str, Any]:
    """The options of one of these losses as fields of verl's `ActorConfig`."""
    if not isinstance(params, Clipped):
        return {}
    high = params.eps_clip if params.eps_clip_high is None else params.eps_clip_high
    fields = {"clip_ratio": params.eps_clip, "clip_ratio_low": params.eps_clip, "clip_ratio_high": high}
    return fields | ({"clip_ratio_c": params.clip_ratio_c} if isinstance(params, Vanilla) else {})


def verl_losses() -> Iterator[LossPlugin[Any]]:
    """One record per loss."""
    yield _loss("vanilla", "verl's PPO: clipped importance ratio, also where the advantage is negative.", Vanilla)
    yield replace(_loss("gpg", "verl's GPG: log-prob times advantage.", NoParams), has_ratio=False)
    yield _loss("geo_mean", "verl's GMPO: geometric mean of a sequence's clipped ratios.", Clipped)


def _loss(name: str, summary: str, params: type[BaseModel]) -> LossPlugin[Any]:
    return LossPlugin(name=name, summary=summary, params=params, load=_loader(name), only_on=ONLY_ON)


def _loader(name: str) -> Callable[[], PolicyLoss]:
    def load() -> PolicyLoss:
        from rllm_verl.verl_policy_loss import VerlPolicyLoss

        return VerlPolicyLoss(name)

    return load
