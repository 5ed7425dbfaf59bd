"""Sections about learning: from episodes to groups, to advantages, to a loss; and the stages that do it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rllm_core.schema.section import (
    ROLE_LOSS,
    Choice,
    Names,
    NoEffect,
    NonNegativeInt,
    PositiveInt,
    ReadBy,
    Rejected,
    Section,
    no_effect_without,
    section,
)

OF_ALGORITHMS = ReadBy(options_of=("estimator", "loss"))
OF_CORRECTION = no_effect_without("tis_mode")
OF_REJECTIONS = ReadBy(options_of=("rejection",))
OF_EQUAL_COEFFICIENTS = NoEffect(
    lambda entropy: entropy.coeff == entropy.final_coeff,
    ": coeff and final_coeff are equal",
    "Set coeff or final_coeff.",
)
WHILE_BYPASSED = NoEffect(
    lambda correction: bool(correction.bypass_mode),
    ": bypass_mode is true, so old log-probs are the rollout's and every ratio is 1",
    "Leave bypass_mode out, or set it to false.",
)
Mask = Annotated[bool, ReadBy(), no_effect_without("enable=true", lambda _: False)]
"""True if rollouts with one termination reason are masked."""


class EntropySection(Section):
    """Entropy bonus and its schedule."""

    coeff: Annotated[float, ReadBy()] = Field(0.0, ge=0, description="Weight of the bonus at the first step.")
    final_coeff: Annotated[float, ReadBy(), no_effect_without("decay_steps", lambda entropy: entropy.coeff)] = Field(
        0.0, ge=0, description="Its weight from step `decay_steps` on; needs `decay_steps`."
    )
    decay_steps: Annotated[NonNegativeInt, ReadBy(), OF_EQUAL_COEFFICIENTS] = Field(
        0, description="Steps of the linear change from `coeff` to `final_coeff`; 0 keeps `coeff`."
    )


RejectionRule = Literal[
    "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1", "seq_mean_k2",
    "seq_mean_k3", "seq_max_k2", "seq_max_k3", "veto", "kpop", "opsm",
]  # fmt: skip
"""A rule that rejects tokens, or whole rows; see `rejected` of rllm-backend-kit."""


class RolloutCorrectionSection(Section):
    """Correction for rollouts whose probabilities differ from those of the trainer (truncated importance sampling)."""

    bypass_mode: Annotated[bool | None, ReadBy()] = Field(
        None, description="Take the rollout's log-probs as old log-probs; null: unless `tis_mode` is set."
    )
    tis_mode: Annotated[Literal["token", "sequence"] | None, ReadBy(), WHILE_BYPASSED] = Field(
        None,
        description="Importance ratio per token, or multiplied over a sequence; null means no correction. A sequence "
        "is a trajectory, or one segment of it where its history was rewritten.",
    )
    tis_cap: Annotated[float, ReadBy(), OF_CORRECTION] = Field(
        2.0, gt=0, description="Largest ratio; needs `tis_mode`."
    )
    tis_beyond_cap: Annotated[Literal["truncate", "mask"], ReadBy(), OF_CORRECTION] = Field(
        "truncate", description="A ratio above `tis_cap` counts as `tis_cap`, or its tokens are masked."
    )
    tis_floor: Annotated[float, ReadBy(), OF_CORRECTION] = Field(
        0.0, ge=0, description="Tokens or sequences with a ratio below this are masked; needs `tis_mode`."
    )
    reject: Annotated[dict[RejectionRule, float | tuple[float, float]], ReadBy(), WHILE_BYPASSED] = Field(
        default_factory=dict, description="Rules by name, with thresholds. Tokens that a rule rejects are masked."
    )
    preset: Annotated[str | None, ReadBy()] = Field(
        None, description="verl's preset, by name: defaults for the other keys. See `docs/how-to/async.md`."
    )

    @property
    def is_active(self) -> bool:
        """True if tokens are weighted or rejected."""
        return self.tis_mode is not None or bool(self.reject)


class AlgorithmSection(Section):
    """From rewards to gradients."""

    adv_estimator: Annotated[Choice, ReadBy(), Names("estimator")] = Field(
        "grpo", description="Advantage estimator, by name."
    )
    estimator_map: Annotated[dict[str, Choice], ReadBy(), Names("estimator", inner_choice=ROLE_LOSS)] = Field(
        default_factory=dict,
        description="Other estimators, by group role; `loss_fn` in a mapping sets the role's loss as well.",
    )
    norm_adv_by_std_in_grpo: Annotated[bool, OF_ALGORITHMS] = Field(
        True, description="Whether `grpo` divides by the group's standard deviation."
    )
    use_precomputed_advantage: Annotated[bool, ReadBy()] = Field(
        False, description="Groups whose steps carry advantages from the workflow keep them; others are estimated."
    )
    on_precomputed_mismatch: Annotated[
        Literal["error", "zero"], ReadBy(), no_effect_without("use_precomputed_advantage=true")
    ] = Field(
        "error",
        description="What to do with a step of such a group whose advantage is missing, of another length than its "
        "response, NaN or infinite; always counted in metrics. Needs `use_precomputed_advantage`.",
    )
    use_rllm: Annotated[
        bool | None, Rejected("Advantages are always computed here. Remove the key.", accepted=True)
    ] = Field(None, description="Accepted for configurations of rLLM.")
    loss_fn: Annotated[Choice | None, ReadBy(), Names("loss")] = Field(
        None, description="Policy loss, by name; null means the estimator's default."
    )
    loss_map: Annotated[dict[str, Choice], ReadBy(), Names("loss")] = Field(
        default_factory=dict, description="Other losses, by group role."
    )
    loss_agg_mode: Annotated[
        Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"],
        ReadBy(),
    ] = Field(
        "token-mean",
        description="How token losses become one number. `seq` is a trajectory, or one segment of it where its history "
        "was rewritten.",
    )
    eps_clip: Annotated[float, OF_ALGORITHMS] = Field(
        0.2, gt=0, description="Importance ratios below 1 - eps_clip are clipped."
    )
    eps_clip_high: Annotated[float | None, OF_ALGORITHMS] = Field(
        None, gt=0, description="Upper bound 1 + eps_clip_high; null means eps_clip."
    )
    kl_beta: Annotated[float, ReadBy()] = Field(
        0.0, ge=0, description="Weight of the KL divergence from the reference model in the loss."
    )
    kl_estimator: Annotated[Literal["k1", "k2", "k3"], ReadBy(), no_effect_without("kl_beta")] = Field(
        "k3", description="How a token's divergence is estimated (Schulman 2020, joschu.net/blog/kl-approx.html)."
    )
    lr_schedule: Annotated[Literal["constant", "linear", "cosine"] | None, ReadBy()] = Field(
        None, description="How the learning rate falls over the run; null means the backend's own key."
    )
    warmup_steps_ratio: Annotated[float | None, ReadBy()] = Field(
        None, ge=0, le=1, description="Share of the run in which the learning rate rises; null: the backend's own key."
    )
    entropy: EntropySection = section(EntropySection)
    rollout_correction: RolloutCorrectionSection = section(RolloutCorrectionSection)
    on_missing_reward: Annotated[Literal["error", "drop", "zero"], ReadBy()] = Field(
        "error", description="What to do with a missing, NaN or infinite reward; always counted in metrics."
    )


AlgorithmConfig = AlgorithmSection
"""rLLM's name for it."""


class StepwiseAdvantageSection(Section):
    """How an advantage reaches the steps of a trajectory."""

    enable: Annotated[bool, ReadBy()] = Field(False, description="Whether `normalize_by_steps` is used.")
    mode: Annotated[
        Literal["broadcast", "per_step"],
        Rejected(
            "One advantage is estimated per trajectory and given to all its steps; for advantages per step choose an "
            "estimator of level `step` or `token` with rllm.algorithm.adv_estimator.",
            value="per_step",
        ),
    ] = Field("broadcast", description="`broadcast`: every step has its trajectory's advantage.")
    normalize_by_steps: Annotated[bool, ReadBy()] = Field(
        False, description="Divide a trajectory's advantage by its number of steps."
    )


class CompactFilteringSection(Section):
    """Which ways of ending take an attempt out of the gradient."""

    enable: Annotated[bool, ReadBy()] = Field(False, description="Whether to mask attempts by how they ended.")
    mask_max_prompt_length_exceeded: Mask = Field(True, description="Mask attempts whose prompt grew too long.")
    mask_max_response_length_exceeded: Mask = Field(True, description="Mask attempts whose answer was cut off.")
    mask_env_done: Mask = Field(False, description="Mask attempts that the environment ended.")
    mask_max_turns_exceeded: Mask = Field(True, description="Mask attempts that ran out of turns.")
    mask_timeout: Mask = Field(True, description="Mask attempts that ran out of time.")
    mask_unknown: Mask = Field(False, description="Mask attempts that do not say how they ended.")
    mask_error: Mask = Field(True, description="Mask attempts that failed.")


class TransformSection(Section):
    """From episodes to groups."""

    grouping: Annotated[Choice, ReadBy(), Names("grouping")] = Field(
        "task_role", description="How trajectories are grouped, by name."
    )


class RejectionSection(Section):
    """Groups not trained on."""

    enable: Annotated[bool, ReadBy()] = Field(
        False, description="Whether to use `mode` and `multiplier`; when false, mode is `none`."
    )
    mode: Annotated[Choice, ReadBy(), Names("rejection"), no_effect_without("enable=true", lambda _: "none")] = Field(
        "group", description="Rejection mode, by name."
    )
    multiplier: PositiveInt = Field(1, description="How many times `data.train_batch_size` tasks a step draws.")
    min_partial_solve_tasks: Annotated[PositiveInt, OF_REJECTIONS] = Field(
        1, description="Mode `episode`: partly solved tasks to gather before an update."
    )
    min_trajs_per_group: Annotated[PositiveInt, OF_REJECTIONS] = Field(
        2, description="Modes `group` and `dynamic`: smaller groups are dropped."
    )
    max_gen_batches: Annotated[PositiveInt, OF_REJECTIONS] = Field(
        10, description="Mode `dynamic`: batches of tasks played in one step at most."
    )


class PipelineSection(Section):
    """The stages of a training step."""

    stages: Annotated[list[Choice] | None, Names("stage")] = Field(
        None, description="The whole pipeline, by stage name; null means the built-in."
    )
    insert: list[dict[str, Any]] = Field(
        default_factory=list, description="Stages to add: `{stage: NAME, after: NAME}`, or with `before`."
    )
    remove: Annotated[list[str], Names("stage")] = Field(default_factory=list, description="Stages to leave out.")
    replace: Annotated[dict[str, Choice], Names("stage")] = Field(
        default_factory=dict, description="Stages to exchange: old name to new."
    )
    move: list[dict[str, str]] = Field(
        default_factory=list, description="Stages to put elsewhere: `{stage: NAME, after: NAME}`, or with `before`."
    )
