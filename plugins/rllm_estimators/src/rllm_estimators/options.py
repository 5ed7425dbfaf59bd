"""Options of the estimators. They are separate from the estimators so that listing plugins imports no numpy.

A field with the name of a config key (`norm_adv_by_std_in_grpo` of ``rllm.algorithm``) takes that key's value.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rllm_core.contracts.plugin import Params
from rllm_core.schema.section import Choice, Names, OptionRole

STEP_REWARDS = (
    "Use the reward of each step, on the step's last sampled token, and ignore the trajectory's reward. A step without "
    "a reward is then an error."
)


class A2poParams(Params):
    beta: float = Field(0.5, gt=0, description="Temperature of the soft maximum. A large value gives the group mean.")


class DrGrpoParams(Params):
    dialect: Literal["verl", "trl"] = Field(
        "verl", description="Advantage in a group with one trajectory: its reward (verl), or 0 (trl)."
    )


class GpgParams(Params):
    f_norm: float = Field(1.0, gt=0, description="Divisor of every advantage.")


class MaxRlParams(Params):
    dialect: Literal["prime_rl", "skyrl"] = Field(
        "prime_rl",
        description="prime_rl divides by the group's mean, and returns 0 if the mean is not positive. skyrl divides by "
        "the mean + 1e-6 with any sign, and a group with one trajectory keeps its reward.",
    )


class GrpoPassKParams(Params):
    norm_adv_by_std_in_grpo: bool = Field(True, description="Divide by the group's standard deviation.")


class GdpoParams(Params):
    dialect: Literal["verl", "nemo"] = Field(
        "verl",
        description="verl standardizes each component within its group, and the sum over tokens. nemo standardizes "
        "each component against the group's other members, and the sum over trajectories.",
    )
    weights: dict[str, float] = Field({}, description="Weights of reward components by name. The default is 1.")


class ReinforcePlusPlusParams(Params):
    gamma: float = Field(1.0, ge=0, le=1, description="Discount per sampled token.")
    use_step_rewards: Annotated[bool, OptionRole.READS_STEP_REWARDS] = Field(False, description=STEP_REWARDS)


class GaeParams(Params):
    gamma: float = Field(1.0, ge=0, le=1, description="Discount per sampled token.")
    lam: float = Field(0.95, ge=0, le=1, description="0 uses only the critic, 1 uses only the observed rewards.")
    lam_alpha: float | None = Field(
        None,
        gt=0,
        description="If set, lam is 1 - 1 / (lam_alpha * sampled tokens) for each trajectory, and `lam` is ignored. "
        "VAPO uses 0.05. null means: use `lam`.",
    )
    whiten: bool = Field(True, description="Bring the advantages of all sampled tokens to mean 0 and variance 1.")
    use_step_rewards: Annotated[bool, OptionRole.READS_STEP_REWARDS] = Field(False, description=STEP_REWARDS)


class GrpoLengthParams(Params):
    weight: float = Field(0.1, ge=0, description="Weight of the length term, which is from -0.5 to 0.5.")
    correct_above: float = Field(0.0, description="Only rewards above this can gain from being short.")


class GigpoParams(Params):
    gamma: float = Field(0.95, ge=0, le=1, description="Discount per step of the rewards of later steps.")
    step_weight: float = Field(1.0, ge=0, description="Weight of the comparison of steps in an equal state.")
    norm_adv_by_std_in_grpo: bool = Field(True, description="Divide by the standard deviations.")


class MixParams(Params):
    parts: Annotated[list[Choice], Names("estimator")] = Field(
        min_length=1, description="Estimators to add: names, or mappings with a name and options."
    )
    weights: list[float] | None = Field(None, description="A weight for each part. null means 1 for each.")

    @property
    def weights_of_parts(self) -> list[float]:
        return [1.0] * len(self.parts) if self.weights is None else self.weights

    @model_validator(mode="after")
    def _one_weight_each(self) -> Self:
        if len(self.weights_of_parts) != len(self.parts):
            raise ValueError("weights must have one number for each part")
        return self


class RaeParams(Params):
    decay: float = Field(0.95, ge=0, lt=1, description="Weight of the earlier mean for each new trajectory.")


class SpoParams(Params):
    retention: float = Field(
        0.9, gt=0, le=1, description="Weight of a task's earlier rewards in each of its steps. 1 forgets none."
    )
    prior: float = Field(0.5, ge=0, le=1, description="Expected reward of a task without earlier rewards.")
    prior_weight: float = Field(8.0, gt=0, description="Number of rewards that `prior` counts as.")


class StepReinforceParams(Params):
    gamma: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Discount per step of later steps' rewards. Set 0 if the workflow already adds them up "
        "(`rllm.workflow.workflow_args.gamma`).",
    )
    norm_adv_by_std_in_grpo: bool = Field(True, description="Divide by the group's standard deviation.")


class OtbParams(Params):
    tis_mode: Literal["token", "sequence"] | None = Field(
        None,
        description="Weight tokens also by the squared ratio of old to sampling probability, per token or multiplied "
        "over the trajectory. Use it if `rllm.algorithm.rollout_correction` weights the loss by that ratio. If a "
        "trajectory's history was rewritten, the ratio is per segment. null means no weight. The ratio is 1 if the old "
        "log-probs come from the rollout.",
    )
    tis_cap: float = Field(2.0, gt=0, description="Maximum ratio. Needs `tis_mode`.")
