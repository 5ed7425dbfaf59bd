"""The core's policy losses: their options and plugin specs. ``rllm_core.updates.losses`` computes them.

A field with the name of a config key takes that key's value. For example, `eps_clip` takes ``rllm.algorithm.eps_clip``.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.plugin import Params
from rllm_core.lazy import load_from


class ClipParams(Params):
    """Options of losses that clip at ``1 - eps_clip`` and ``1 + eps_clip_high``, as in ``rllm.algorithm``."""

    eps_clip: float = Field(0.2, gt=0, description="Importance ratios below 1 - eps_clip are clipped.")
    eps_clip_high: float | None = Field(None, gt=0, description="Upper bound 1 + eps_clip_high. null means eps_clip.")

    @property
    def eps_low_high(self) -> tuple[float, float]:
        return self.eps_clip, self.eps_clip if self.eps_clip_high is None else self.eps_clip_high


class PpoParams(ClipParams):
    clip_ratio_c: float | None = Field(
        None,
        gt=1,
        description="Dual clip: if the advantage is negative, a token's loss is at most clip_ratio_c times the "
        "advantage's size. null means no bound. 3 is a common value.",
    )


LOSSES: tuple[LossPlugin[Any], ...] = (
    LossPlugin(
        name="ppo",
        summary="Clipped importance ratio.",
        params=PpoParams,
        load=load_from("rllm_core.updates.losses", "ppo"),
        load_clipped=load_from("rllm_core.updates.losses", "ppo_clipped"),
    ),
    LossPlugin(
        name="importance_sampling",
        summary="Importance ratio times advantage, no clipping.",
        load=load_from("rllm_core.updates.losses", "importance_sampling"),
    ),
    LossPlugin(
        name="reinforce",
        summary="Log-prob times advantage, on-policy.",
        load=load_from("rllm_core.updates.losses", "reinforce"),
        has_ratio=False,
    ),
)
