"""What was done to the episodes before estimators saw them, in words that config and command line use."""

from __future__ import annotations

from dataclasses import dataclass

from rllm_core.algorithms.filtering import masked_reasons
from rllm_core.rescoring.rescore import NO_REJECTION, Rescored


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The rules of a replay. Plugins are given by their qualified names."""

    grouping: str
    on_missing_reward: str
    masked: tuple[str, ...]
    """Ways of ending whose attempts were left out."""
    mask_truncated: bool
    """Whether trajectories whose last answer was cut off were left out."""
    rejection: str
    run_rejection: str | None
    """The mode that the run rejected groups with; None where it rejected none, or is not known."""
    use_precomputed_advantage: bool
    """Whether groups that bring advantages of their own keep them, under every setup."""
    normalize_by_steps: bool
    loss_agg_mode: str
    stages_not_replayed: tuple[str, ...]
    """Stages of the run that are not the core's."""


def applied_to(result: Rescored) -> Applied:
    """The rules that a result was made with."""
    config, rules = result.rules.config.rllm, result.rules
    filtering = "compact_filter" not in rules.left_out
    rejection = config.rejection_sample
    mode = rejection.mode if isinstance(rejection.mode, str) else str(rejection.mode.get("name"))
    return Applied(
        grouping=rules.grouping.registered.qualified_name,
        on_missing_reward=config.algorithm.on_missing_reward,
        masked=tuple(sorted(reason.value for reason in masked_reasons(config))) if filtering else (),
        mask_truncated=config.mask_truncated_samples and filtering,
        rejection=rules.rejection.registered.qualified_name,
        run_rejection=mode if rejection.enable and mode != NO_REJECTION else None,
        use_precomputed_advantage=config.algorithm.use_precomputed_advantage,
        normalize_by_steps=config.stepwise_advantage.enable and config.stepwise_advantage.normalize_by_steps,
        loss_agg_mode=config.algorithm.loss_agg_mode,
        stages_not_replayed=result.strange_stages,
    )
