"""Options of the losses. They are separate from the losses so that listing plugins imports no torch.

A field with the name of a config key (`eps_clip` of ``rllm.algorithm.eps_clip``) takes that key's value. So an option
that does not bound a token's importance ratio needs a different name.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rllm_core.algorithms.options import ClipParams
from rllm_core.contracts.plugin import Params


class CispoParams(ClipParams):
    eps_clip: float = Field(
        0.2, gt=0, description="Importance weights below 1 - eps_clip are raised to it; 1 or more: no lower bound."
    )
    eps_clip_high: float | None = Field(
        None, gt=0, description="Importance weights are at most 1 + eps_clip_high; null means eps_clip."
    )


class GspoParams(Params):
    sequence_eps_clip: float = Field(
        3e-4, gt=0, description="Ratios of sequences below 1 - sequence_eps_clip are clipped; 3e-4 as in the paper."
    )
    sequence_eps_clip_high: float = Field(
        4e-4, gt=0, description="Upper bound 1 + sequence_eps_clip_high; 4e-4 as in the paper."
    )


class GmpoParams(Params):
    log_ratio_clip: float = Field(
        0.4, gt=0, description="Log-ratios of tokens below -log_ratio_clip are clipped; 0.4 as in the paper."
    )
    log_ratio_clip_high: float | None = Field(
        None, gt=0, description="Log-ratios above log_ratio_clip_high are clipped; null means log_ratio_clip."
    )

    @property
    def low_high(self) -> tuple[float, float]:
        return self.log_ratio_clip, _or(self.log_ratio_clip_high, self.log_ratio_clip)


class SapoParams(Params):
    tau_positive: float = Field(1.0, gt=0, description="Temperature of the gate where the advantage is positive.")
    tau_negative: float = Field(
        1.05, gt=0, description="Elsewhere; higher closes the gate sooner, and negative advantages need that."
    )


class DppoParams(Params):
    max_divergence: float = Field(
        0.2, gt=0, description="Tokens that are being made less likely are trained on up to this divergence."
    )
    max_divergence_high: float | None = Field(
        None,
        gt=0,
        description="The same for tokens that are being made likelier; null means max_divergence.",
    )
    clip_ratio_c: float = Field(20.0, gt=0, description="Importance weights above this are cut off.")
    kl_tau: float = Field(0.0, ge=0, description="Weight of the squared log-ratio; 1e-3 in prime-rl.")

    @property
    def low_high(self) -> tuple[float, float]:
        return self.max_divergence, _or(self.max_divergence_high, self.max_divergence)


class IpoParams(Params):
    max_divergence: float = Field(
        0.1, gt=0, description="Tokens whose probability moved further than this are not trained on."
    )
    kl_tau: float = Field(1e-3, ge=0, description="Weight of the squared log-ratio.")


class VespoParams(Params):
    k_positive: float = Field(2.0, ge=0, description="Power of the row's ratio if the advantage is not negative.")
    lambda_positive: float = Field(
        3.0, gt=0, description="Decay of the weight with the row's ratio if the advantage is not negative."
    )
    k_negative: float = Field(3.0, ge=0, description="Power of the row's ratio if the advantage is negative.")
    lambda_negative: float = Field(
        2.0, gt=0, description="Decay of the weight with the row's ratio if the advantage is negative."
    )


class ToprParams(Params):
    level: Literal["sequence", "token"] = Field(
        "sequence", description="sequence: one ratio per row, as in the paper; token: each token's ratio."
    )


class FipoParams(ClipParams):
    half_life: float = Field(32.0, gt=0, description="A log-ratio this many tokens later has half the effect.")
    max_influence: float = Field(0.2, ge=0, description="Advantages are multiplied by at most 1 + max_influence.")


class ReinforceKlParams(Params):
    fwd_kl_coef: float = Field(0.0, ge=0, description="Weight of KL(trainer || sampler).")
    bwd_kl_coef: float = Field(0.0, ge=0, description="Weight of KL(sampler || trainer).")
    ratio_clamp_min: float | None = Field(None, ge=0, description="Smallest importance weight; null means none.")
    ratio_clamp_max: float | None = Field(None, gt=0, description="Largest importance weight; null means none.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        low, high = self.ratio_clamp_min, self.ratio_clamp_max
        if low is not None and high is not None and low > high:
            raise ValueError("ratio_clamp_min must not exceed ratio_clamp_max")
        return self


class DroParams(Params):
    beta: float = Field(0.05, gt=0, description="Weight of the squared log-ratio.")


class KlCovParams(Params):
    kl_cov_ratio: float = Field(2e-4, ge=0, le=1, description="Share of the tokens that is penalised.")
    ppo_kl_coef: float = Field(1.0, ge=0, description="Weight of the penalty; 1 in the paper, 0.1 in verl.")


class ClipCovParams(ClipParams):
    clip_cov_ratio: float = Field(2e-4, ge=0, le=1, description="Share of the tokens whose gradient is cut.")
    clip_cov_lb: float = Field(1.0, description="Cut only tokens whose covariance is above this.")
    clip_cov_ub: float = Field(5.0, description="And below this.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.clip_cov_lb >= self.clip_cov_ub:
            raise ValueError("clip_cov_lb must be below clip_cov_ub")
        return self


def _or(value: float | None, instead: float) -> float:
    return instead if value is None else value
