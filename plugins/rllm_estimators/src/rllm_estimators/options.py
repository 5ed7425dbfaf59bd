"""Options of the estimators and losses. They are separate so that listing plugins imports neither numpy nor torch.

A field with the name of a key of ``rllm.algorithm``, such as `eps_clip`, takes that key's value. `eps_clip` bounds the
importance ratio of a token, so an option that bounds something else needs a different name.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rllm_core.algorithms.options import ClipParams
from rllm_core.contracts.params import Params
from rllm_core.schema.section import Choice, Names, OptionRole

STEP_REWARDS = (
    "Use the reward of each step, on the step's last sampled token, and ignore the trajectory's reward. A step without "
    "a reward is then an error."
)


class A2poParams(Params):
    beta: float = Field(0.5, gt=0)
    """Temperature of the soft maximum. A large value gives the group mean."""


class DrGrpoParams(Params):
    dialect: Literal["verl", "trl"] = "verl"
    """Advantage in a group with one trajectory: its reward (verl), or 0 (trl)."""


class GpgParams(Params):
    f_norm: float = Field(1.0, gt=0)
    """Divisor of every advantage."""


class MaxRlParams(Params):
    dialect: Literal["prime_rl", "skyrl"] = "prime_rl"
    """prime_rl divides by the group's mean, and returns 0 if the mean is not positive. skyrl divides by the mean + 1e-6
    with any sign, and a group with one trajectory keeps its reward."""


class GrpoPassKParams(Params):
    norm_adv_by_std_in_grpo: bool = True
    """Divide by the group's standard deviation."""


class GdpoParams(Params):
    dialect: Literal["verl", "nemo"] = "verl"
    """verl standardizes each component within its group, and the sum over tokens. nemo standardizes each component
    against the group's other members, and the sum over trajectories."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Weights of reward components by name. The default is 1."""


class ReinforcePlusPlusParams(Params):
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount per sampled token."""
    use_step_rewards: Annotated[bool, OptionRole.READS_STEP_REWARDS] = Field(False, description=STEP_REWARDS)


class GaeParams(Params):
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount per sampled token."""
    lam: float = Field(0.95, ge=0, le=1)
    """0 uses only the critic, 1 uses only the observed rewards."""
    lam_alpha: float | None = Field(None, gt=0)
    """If set, lam is 1 - 1 / (lam_alpha * sampled tokens) for each trajectory, and `lam` is ignored. VAPO uses 0.05.
    null means: use `lam`."""
    whiten: bool = True
    """Bring the advantages of all sampled tokens to mean 0 and variance 1."""
    use_step_rewards: Annotated[bool, OptionRole.READS_STEP_REWARDS] = Field(False, description=STEP_REWARDS)


class GrpoLengthParams(Params):
    weight: float = Field(0.1, ge=0)
    """Weight of the length term, which is from -0.5 to 0.5."""
    correct_above: float = 0.0
    """Only rewards above this can gain from being short."""


class GigpoParams(Params):
    gamma: float = Field(0.95, ge=0, le=1)
    """Discount per step of the rewards of later steps."""
    step_weight: float = Field(1.0, ge=0)
    """Weight of the comparison of steps in an equal state."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide by the standard deviations."""


class MixParams(Params):
    parts: Annotated[list[Choice], Names("estimator")] = Field(min_length=1)
    """Estimators to add: names, or mappings with a name and options."""
    weights: list[float] | None = None
    """A weight for each part. null means 1 for each."""

    @property
    def weights_of_parts(self) -> list[float]:
        return [1.0] * len(self.parts) if self.weights is None else self.weights

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if len(self.weights_of_parts) != len(self.parts):
            raise ValueError("weights must have one number for each part")
        return self


class RaeParams(Params):
    decay: float = Field(0.95, ge=0, lt=1)
    """Weight of the earlier mean for each new trajectory."""


class SpoParams(Params):
    retention: float = Field(0.9, gt=0, le=1)
    """Weight of a task's earlier rewards in each of its steps. 1 forgets none."""
    prior: float = Field(0.5, ge=0, le=1)
    """Expected reward of a task without earlier rewards."""
    prior_weight: float = Field(8.0, gt=0)
    """Number of rewards that `prior` counts as."""


class StepReinforceParams(Params):
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount per step of later steps' rewards. Set 0 if the workflow already adds them up
    (`rllm.workflow.workflow_args.gamma`)."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide by the group's standard deviation."""


class OtbParams(Params):
    tis_mode: Literal["token", "sequence"] | None = None
    """Weight tokens also by the squared ratio of old to sampling probability, per token or multiplied over the
    trajectory. Use it if `rllm.algorithm.rollout_correction` weights the loss by that ratio. If a trajectory's history
    was rewritten, the ratio is per segment. null means no weight. The ratio is 1 if the old log-probs come from the
    rollout."""
    tis_cap: float = Field(2.0, gt=0)
    """Maximum ratio. Needs `tis_mode`."""


class A2poLossParams(Params):
    beta: float = Field(1e-3, gt=0)
    """Weight of the row's log-ratio to the reference model."""


class CispoParams(ClipParams):
    eps_clip: float = Field(0.2, gt=0)
    """Lower bound of importance weights is 1 - eps_clip. 1 or more means no lower bound."""
    eps_clip_high: float | None = Field(None, gt=0)
    """Upper bound of importance weights is 1 + eps_clip_high. null means eps_clip."""


class GspoParams(Params):
    sequence_eps_clip: float = Field(3e-4, gt=0)
    """Lower bound of sequence ratios is 1 - sequence_eps_clip. The paper uses 3e-4."""
    sequence_eps_clip_high: float = Field(4e-4, gt=0)
    """Upper bound of sequence ratios is 1 + sequence_eps_clip_high. The paper uses 4e-4."""


class GmpoParams(Params):
    log_ratio_clip: float = Field(0.4, gt=0)
    """Lower bound of token log-ratios is -log_ratio_clip. The paper uses 0.4."""
    log_ratio_clip_high: float | None = Field(None, gt=0)
    """Upper bound of token log-ratios. null means log_ratio_clip."""

    @property
    def low_high(self) -> tuple[float, float]:
        return self.log_ratio_clip, _choose(self.log_ratio_clip_high, self.log_ratio_clip)


class SapoParams(Params):
    tau_positive: float = Field(1.0, gt=0)
    """Temperature of the gate if the advantage is positive."""
    tau_negative: float = Field(1.05, gt=0)
    """Temperature of the gate if the advantage is not positive. A higher value closes the gate sooner, which negative
    advantages need."""


class DppoParams(Params):
    max_divergence: float = Field(0.2, gt=0)
    """Maximum divergence of tokens that become less likely. Beyond it they are masked."""
    max_divergence_high: float | None = Field(None, gt=0)
    """Maximum divergence of tokens that become likelier. null means max_divergence."""
    clip_ratio_c: float = Field(20.0, gt=0)
    """Maximum importance weight."""
    kl_tau: float = Field(0.0, ge=0)
    """Weight of the squared log-ratio. prime-rl uses 1e-3."""

    @property
    def low_high(self) -> tuple[float, float]:
        return self.max_divergence, _choose(self.max_divergence_high, self.max_divergence)


class IpoParams(Params):
    max_divergence: float = Field(0.1, gt=0)
    """Maximum change of a token's probability. Tokens beyond it are masked."""
    kl_tau: float = Field(1e-3, ge=0)
    """Weight of the squared log-ratio."""


class VespoParams(Params):
    k_positive: float = Field(2.0, ge=0)
    """Power of the row's ratio if the advantage is not negative."""
    lambda_positive: float = Field(3.0, gt=0)
    """Decay of the weight with the row's ratio if the advantage is not negative."""
    k_negative: float = Field(3.0, ge=0)
    """Power of the row's ratio if the advantage is negative."""
    lambda_negative: float = Field(2.0, gt=0)
    """Decay of the weight with the row's ratio if the advantage is negative."""


class ToprParams(Params):
    level: Literal["sequence", "token"] = "sequence"
    """sequence uses one ratio per row, as in the paper. token uses each token's ratio."""


class FipoParams(ClipParams):
    half_life: float = Field(32.0, gt=0)
    """A log-ratio this many tokens later has half the effect."""
    max_influence: float = Field(0.2, ge=0)
    """Advantages are multiplied by at most 1 + max_influence."""


class ReinforceKlParams(Params):
    fwd_kl_coef: float = Field(0.0, ge=0)
    """Weight of KL(trainer || sampler)."""
    bwd_kl_coef: float = Field(0.0, ge=0)
    """Weight of KL(sampler || trainer)."""
    ratio_clamp_min: float | None = Field(None, ge=0)
    """Minimum importance weight. null means none."""
    ratio_clamp_max: float | None = Field(None, gt=0)
    """Maximum importance weight. null means none."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        low, high = self.ratio_clamp_min, self.ratio_clamp_max
        if low is not None and high is not None and low > high:
            raise ValueError("ratio_clamp_min must not exceed ratio_clamp_max")
        return self


class DroParams(Params):
    beta: float = Field(0.05, gt=0)
    """Weight of the squared log-ratio."""


class KlCovParams(Params):
    kl_cov_ratio: float = Field(2e-4, ge=0, le=1)
    """Share of the tokens to penalise."""
    ppo_kl_coef: float = Field(1.0, ge=0)
    """Weight of the penalty. The paper uses 1, verl 0.1."""


class ClipCovParams(ClipParams):
    clip_cov_ratio: float = Field(2e-4, ge=0, le=1)
    """Share of the tokens to cut from the gradient."""
    clip_cov_lb: float = 1.0
    """Cut only tokens whose covariance is above this."""
    clip_cov_ub: float = 5.0
    """Cut only tokens whose covariance is below this."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.clip_cov_lb >= self.clip_cov_ub:
            raise ValueError("clip_cov_lb must be below clip_cov_ub")
        return self


def _choose(value: float | None, instead: float) -> float:
    return instead if value is None else value
