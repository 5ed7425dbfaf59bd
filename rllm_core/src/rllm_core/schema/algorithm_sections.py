"""Sections about learning: groups, advantages, losses, and the stages that compute them."""

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
    "Remove bypass_mode, or set it to false.",
)
Mask = Annotated[bool, ReadBy(), no_effect_without("enable=true", lambda _: False)]
"""True if rollouts with one termination reason are masked."""


class EntropySection(Section):
    """Entropy bonus and its schedule."""

    coeff: Annotated[float, ReadBy()] = Field(0.0, ge=0)
    """Weight of the bonus at the first step."""
    final_coeff: Annotated[float, ReadBy(), no_effect_without("decay_steps", lambda entropy: entropy.coeff)] = Field(
        0.0, ge=0
    )
    """Weight of the bonus from step `decay_steps` on. Needs `decay_steps`."""
    decay_steps: Annotated[NonNegativeInt, ReadBy(), OF_EQUAL_COEFFICIENTS] = 0
    """Number of steps of the linear change from `coeff` to `final_coeff`. 0 keeps `coeff`."""


AggregationMode = Literal[
    "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm", "prompt-mean",
]  # fmt: skip
"""Aggregation of token losses. `token_weights` has the formulas."""
KlEstimator = Literal["k1", "k2", "k3", "k3_unbiased"]
"""Name of an estimator of the KL divergence. `kl_term` of rllm-backend-kit has the formulas."""
RejectionRule = Literal[
    "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1", "seq_mean_k2",
    "seq_mean_k3", "seq_max_k2", "seq_max_k3", "veto", "kpop", "opsm", "m2po",
]  # fmt: skip
"""A rule that rejects tokens, or whole rows; see `rejected` of rllm-backend-kit."""


class RolloutCorrectionSection(Section):
    """Truncated importance sampling. It corrects the difference between the probabilities of rollout engine and
    trainer."""

    bypass_mode: Annotated[bool | None, ReadBy()] = None
    """Use the rollout's log-probs as old log-probs. null means true, unless `tis_mode` is set."""
    tis_mode: Annotated[Literal["token", "sequence"] | None, ReadBy(), WHILE_BYPASSED] = None
    """Importance ratio per token, or the product over a sequence. null means no correction. A sequence is a trajectory,
    or one segment of a trajectory whose history was rewritten."""
    tis_cap: Annotated[float, ReadBy(), OF_CORRECTION] = Field(2.0, gt=0)
    """Largest ratio. Needs `tis_mode`."""
    tis_beyond_cap: Annotated[Literal["truncate", "mask"], ReadBy(), OF_CORRECTION] = "truncate"
    """`truncate` sets a ratio above `tis_cap` to `tis_cap`. `mask` masks its tokens."""
    tis_floor: Annotated[float, ReadBy(), OF_CORRECTION] = Field(0.0, ge=0)
    """Tokens or sequences with a ratio below this value are masked. Needs `tis_mode`."""
    tis_batch_normalize: Annotated[bool, ReadBy(), OF_CORRECTION] = False
    """Divide ratios by their mean over the batch, after `tis_cap` and `tis_floor`."""
    reject: Annotated[dict[RejectionRule, float | tuple[float, float]], ReadBy(), WHILE_BYPASSED] = Field(
        default_factory=dict
    )
    """Rejection rules by name, with thresholds. Rejected tokens are masked."""
    preset: Annotated[str | None, ReadBy()] = None
    """Name of a verl preset: defaults for the other keys. See `docs/how-to/off-policy.md`."""

    @property
    def is_active(self) -> bool:
        """True if tokens are weighted or rejected."""
        return self.tis_mode is not None or bool(self.reject)


class AlgorithmSection(Section):
    """The computation of advantages and losses."""

    adv_estimator: Annotated[Choice, ReadBy(), Names("estimator")] = "grpo"
    """Name of the advantage estimator."""
    estimator_map: Annotated[dict[str, Choice], ReadBy(), Names("estimator", inner_choice=ROLE_LOSS)] = Field(
        default_factory=dict
    )
    """Estimators for individual group roles. `loss_fn` in a mapping also sets the role's loss."""
    norm_adv_by_std_in_grpo: Annotated[bool, OF_ALGORITHMS] = True
    """Divide advantages of `grpo` by the group's standard deviation."""
    use_precomputed_advantage: Annotated[bool, ReadBy()] = False
    """Keep the advantages that the workflow set on steps. Other groups are estimated."""
    on_precomputed_mismatch: Annotated[
        Literal["error", "zero"], ReadBy(), no_effect_without("use_precomputed_advantage=true")
    ] = "error"
    """Treatment of a step whose precomputed advantage is missing, NaN, infinite, or differs in length from the
    response. Metrics always count such steps. Needs `use_precomputed_advantage`."""
    use_rllm: Annotated[
        bool | None, Rejected("Advantages are always computed here. Remove the key.", accepted=True)
    ] = None
    """Accepted for compatibility with rLLM configs."""
    loss_fn: Annotated[Choice | None, ReadBy(), Names("loss")] = None
    """Name of the policy loss. null means the estimator's default."""
    loss_map: Annotated[dict[str, Choice], ReadBy(), Names("loss")] = Field(default_factory=dict)
    """Losses for individual group roles."""
    loss_agg_mode: Annotated[AggregationMode, ReadBy()] = "token-mean"
    """Aggregation of token losses. `seq` is a trajectory, or one segment of a trajectory whose history was
    rewritten. `prompt-mean` gives each group of rollouts the same weight."""
    eps_clip: Annotated[float, OF_ALGORITHMS] = Field(0.2, gt=0)
    """Importance ratios below 1 - eps_clip are clipped."""
    eps_clip_high: Annotated[float | None, OF_ALGORITHMS] = Field(None, gt=0)
    """Importance ratios above 1 + eps_clip_high are clipped. null means eps_clip."""
    kl_beta: Annotated[float, ReadBy()] = Field(0.0, ge=0)
    """Weight of the KL divergence from the reference model in the loss."""
    kl_estimator: Annotated[KlEstimator, ReadBy(), no_effect_without("kl_beta")] = "k3"
    """A token's KL divergence (joschu.net/blog/kl-approx.html). `k3_unbiased`: times the ratio rho."""
    lr_schedule: Annotated[Literal["constant", "linear", "cosine"] | None, ReadBy()] = None
    """Schedule of the learning rate over the run. null means the backend's own key."""
    warmup_steps_ratio: Annotated[float | None, ReadBy()] = Field(None, ge=0, le=1)
    """Share of the run in which the learning rate rises. null means the backend's own key."""
    entropy: EntropySection = section(EntropySection)
    rollout_correction: RolloutCorrectionSection = section(RolloutCorrectionSection)
    on_missing_reward: Annotated[Literal["error", "drop", "zero"], ReadBy()] = "error"
    """Treatment of a missing, NaN or infinite reward. Metrics always count them."""


AlgorithmConfig = AlgorithmSection
"""rLLM's name for `AlgorithmSection`."""


class StepwiseAdvantageSection(Section):
    """Distribution of a trajectory's advantage over its steps."""

    enable: Annotated[bool, ReadBy()] = False
    """Use `normalize_by_steps`."""
    mode: Annotated[
        Literal["broadcast", "per_step"],
        Rejected(
            "This key supports only one advantage per trajectory. For advantages per step, choose an estimator of "
            "level `step` or `token` with rllm.algorithm.adv_estimator.",
            value="per_step",
        ),
    ] = "broadcast"
    """`broadcast`: every step gets its trajectory's advantage."""
    normalize_by_steps: Annotated[bool, ReadBy()] = False
    """Divide a trajectory's advantage by its number of steps."""


class CompactFilteringSection(Section):
    """Termination reasons whose rollouts are masked."""

    enable: Annotated[bool, ReadBy()] = False
    """Mask rollouts by their termination reason."""
    mask_max_prompt_length_exceeded: Mask = True
    """Mask rollouts whose prompt became too long."""
    mask_max_response_length_exceeded: Mask = True
    """Mask rollouts whose response was cut off."""
    mask_env_done: Mask = False
    """Mask rollouts that the environment ended."""
    mask_max_turns_exceeded: Mask = True
    """Mask rollouts that reached the limit of turns."""
    mask_timeout: Mask = True
    """Mask rollouts that reached the time limit."""
    mask_unknown: Mask = False
    """Mask rollouts without a termination reason."""
    mask_error: Mask = True
    """Mask rollouts that failed."""


class TransformSection(Section):
    """Conversion of episodes to groups."""

    grouping: Annotated[Choice, ReadBy(), Names("grouping")] = "task_role"
    """Name of the rule that groups trajectories."""


class RejectionSection(Section):
    """Groups that are not trained on."""

    enable: Annotated[bool, ReadBy()] = False
    """Use `mode` and `multiplier`. If false, the mode is `none`."""
    mode: Annotated[Choice, ReadBy(), Names("rejection"), no_effect_without("enable=true", lambda _: "none")] = "group"
    """Name of the rejection mode."""
    multiplier: PositiveInt = 1
    """Factor by which a step draws more tasks than `data.train_batch_size`."""
    min_partial_solve_tasks: Annotated[PositiveInt, OF_REJECTIONS] = 1
    """Mode `episode`: number of partly solved tasks to collect before an update."""
    min_trajs_per_group: Annotated[PositiveInt, OF_REJECTIONS] = 2
    """Modes `group` and `dynamic`: smaller groups are dropped."""
    max_gen_batches: Annotated[PositiveInt, OF_REJECTIONS] = 10
    """Mode `dynamic`: maximum number of rollout batches in one step."""


class PipelineSection(Section):
    """The stages of a training step."""

    stages: Annotated[list[Choice] | None, Names("stage")] = None
    """Names of all stages in order. null means the built-in pipeline."""
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Options of stages: `{STAGE: {OPTION: value}}`. They replace the same options in other keys."""
    insert: list[dict[str, Any]] = Field(default_factory=list)
    """Stages to add: `{stage: NAME, after: NAME}`, or with `before`."""
    remove: Annotated[list[str], Names("stage")] = Field(default_factory=list)
    """Names of stages to remove."""
    replace: Annotated[dict[str, Choice], Names("stage")] = Field(default_factory=dict)
    """Stages to replace: old name to new name."""
    move: list[dict[str, str]] = Field(default_factory=list)
    """Stages to move: `{stage: NAME, after: NAME}`, or with `before`."""

    @property
    def has_rollouts(self) -> bool:
        """True if the stages generate rollouts."""
        names = [stage if isinstance(stage, str) else stage.get("name") for stage in self.stages or ()]
        return self.stages is None or "generate" in names
