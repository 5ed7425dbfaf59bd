"""Options of the losses. They are separate from the losses so that listing plugins imports no torch.

A field with the name of a config key (`eps_clip` of ``rllm.algorithm.eps_clip``) takes that key's value. So an option
that does not bound a token's importance ratio needs a different name.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rllm_core.algorithms.loss_plugins import ClipParams
from rllm_core.contracts.plugin import Params


class A2poLossParams(Params):
    beta: float = Field(1e-3, gt=0, description="Weight of the row's log-ratio to the reference model.")


class CispoParams(ClipParams):
    eps_clip: float = Field(
        0.2, gt=0, description="Lower bound of importance weights is 1 - eps_clip. 1 or more means no lower bound."
    )
    eps_clip_high: float | None = Field(
        None, gt=0, description="Upper bound of importance weights is 1 + eps_clip_high. null means eps_clip."
    )


class GspoParams(Params):
    sequence_eps_clip: float = Field(
        3e-4, gt=0, description="Lower bound of sequence ratios is 1 - sequence_eps_clip. The paper uses 3e-4."
    )
    sequence_eps_clip_high: float = Field(
        4e-4, gt=0, description="Upper bound of sequence ratios is 1 + sequence_eps_clip_high. The paper uses 4e-4."
    )


class GmpoParams(Params):
    log_ratio_clip: float = Field(
        0.4, gt=0, description="Lower bound of token log-ratios is -log_ratio_clip. The paper uses 0.4."
    )
    log_ratio_clip_high: float | None = Field(
        None, gt=0, description="Upper bound of token log-ratios. null means log_ratio_clip."
    )

    @property
    def low_high(self) -> tuple[float, float]:
        return self.log_ratio_clip, _or(self.log_ratio_clip_high, self.log_ratio_clip)


class SapoParams(Params):
    tau_positive: float = Field(1.0, gt=0, description="Temperature of the gate if the advantage is positive.")
    tau_negative: float = Field(
        1.05,
        gt=0,
        description="Temperature of the gate if the advantage is not positive. A higher value closes the gate sooner, "
        "which negative advantages need.",
    )


class DppoParams(Params):
    max_divergence: float = Field(
        0.2, gt=0, description="Maximum divergence of tokens that become less likely. Beyond it they are masked."
    )
    max_divergence_high: float | None = Field(
        None,
        gt=0,
        description="Maximum divergence of tokens that become likelier. null means max_divergence.",
    )
    clip_ratio_c: float = Field(20.0, gt=0, description="Maximum importance weight.")
    kl_tau: float = Field(0.0, ge=0, description="Weight of the squared log-ratio. prime-rl uses 1e-3.")

    @property
    def low_high(self) -> tuple[float, float]:
        return self.max_divergence, _or(self.max_divergence_high, self.max_divergence)


class IpoParams(Params):
    max_divergence: float = Field(
        0.1, gt=0, description="Maximum change of a token's probability. Tokens beyond it are masked."
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
        "sequence", description="sequence uses one ratio per row, as in the paper. token uses each token's ratio."
    )


class FipoParams(ClipParams):
    half_life: float = Field(32.0, gt=0, description="A log-ratio this many tokens later has half the effect.")
    max_influence: float = Field(0.2, ge=0, description="Advantages are multiplied by at most 1 + max_influence.")


class ReinforceKlParams(Params):
    fwd_kl_coef: float = Field(0.0, ge=0, description="Weight of KL(trainer || sampler).")
    bwd_kl_coef: float = Field(0.0, ge=0, description="Weight of KL(sampler || trainer).")
    ratio_clamp_min: float | None = Field(None, ge=0, description="Minimum importance weight. null means none.")
    ratio_clamp_max: float | None = Field(None, gt=0, description="Maximum importance weight. null means none.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        low, high = self.ratio_clamp_min, self.ratio_clamp_max
        if low is not None and high is not None and low > high:
            raise ValueError("ratio_clamp_min must not exceed ratio_clamp_max")
        return self


class DroParams(Params):
    beta: float = Field(0.05, gt=0, description="Weight of the squared log-ratio.")


class KlCovParams(Params):
    kl_cov_ratio: float = Field(2e-4, ge=0, le=1, description="Share of the tokens to penalise.")
    ppo_kl_coef: float = Field(1.0, ge=0, description="Weight of the penalty. The paper uses 1, verl 0.1.")


class ClipCovParams(ClipParams):
    clip_cov_ratio: float = Field(2e-4, ge=0, le=1, description="Share of the tokens to cut from the gradient.")
    clip_cov_lb: float = Field(1.0, description="Cut only tokens whose covariance is above this.")
    clip_cov_ub: float = Field(5.0, description="Cut only tokens whose covariance is below this.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.clip_cov_lb >= self.clip_cov_ub:
            raise ValueError("clip_cov_lb must be below clip_cov_ub")
        return self


def _or(value: float | None, instead: float) -> float:
    return instead if value is None else value
