"""Checks of KL divergence, rollout correction and the critic."""

from __future__ import annotations

from collections.abc import Iterator

from rllm.planning.plan import RunPlan
from rllm.planning.problem import Problem, refused, unused, warning
from rllm_core.contracts.backend import recomputes_old_logprobs

SAMPLED = "sampling_logprobs"
CORRECTION = "rllm.algorithm.rollout_correction"


def bounds_leave_something(plan: RunPlan) -> Iterator[Problem]:
    """Check that the bounds of rollout correction leave a range of ratios."""
    correction = plan.config.rllm.algorithm.rollout_correction
    if correction.tis_mode is not None and correction.tis_floor >= correction.tis_cap:
        yield refused(
            "empty-ratio-range",
            f"{CORRECTION}.tis_floor",
            f"{CORRECTION}.tis_floor is {correction.tis_floor} and {CORRECTION}.tis_cap is {correction.tis_cap}: every "
            "ratio is below the floor or above the cap.",
            "Set a floor below 1 and a cap above 1. A token whose probability did not change has ratio 1.",
        )


def rejections_have_bounds(plan: RunPlan) -> Iterator[Problem]:
    """Check that each rejection rule has a threshold above 0, or a lower and an upper ratio."""
    for name, bounds in plan.config.rllm.algorithm.rollout_correction.reject.items():
        key, numbers = f"{CORRECTION}.reject", bounds if isinstance(bounds, tuple) else (bounds,)
        of_ratios = name == "veto" or name.endswith("k1")
        if len(numbers) > 1 and not of_ratios:
            yield refused("wrong-value", key, f"{key}: {name} has one threshold, not two.", "Write one number.")
        elif min(numbers) <= 0 or numbers[0] > numbers[-1] or (of_ratios and len(numbers) == 1 and numbers[0] < 1):
            yield refused(
                "wrong-value",
                key,
                f"{key}: {name} has the threshold {bounds}, which rejects every token or none.",
                "Write a positive number, or [low, high] for ratios, with low below high.",
            )


def rollouts_are_corrected_once(plan: RunPlan) -> Iterator[Problem]:
    """Reject two weightings by the ratio to the sampler's policy: they square it, and the result corrects nothing."""
    key, mode = f"{CORRECTION}.tis_mode", plan.config.rllm.algorithm.rollout_correction.tis_mode
    chosen = {"": plan.losses.default} | {f" of role {role!r}": loss for role, loss in plan.losses.by_role.items()}
    for whose, loss in chosen.items():
        if mode is not None and loss.plugin.corrects_rollouts:
            yield refused(
                "ratio-applied-twice",
                key,
                f"{plan.composed.describe(key)}, and loss {loss.plugin.name!r}{whose} applies the same ratio to the "
                "sampler's policy: it would be applied twice.",
                f"Set {key} to null, or choose another loss with rllm.algorithm.loss_fn or rllm.algorithm.loss_map.",
            )


def old_rollouts_are_weighed(plan: RunPlan) -> Iterator[Problem]:
    """Check that tokens sampled by other weights are corrected. Otherwise they are trained on as if on-policy."""
    stage = next((stage.plugin.name for stage in plan.stages if stage.plugin.off_policy), None)
    if stage is None or plan.config.rllm.algorithm.rollout_correction.tis_mode is not None:
        return
    others = f"the episodes of stage {stage!r} were sampled with other weights"
    for loss in plan.losses:
        if not loss.plugin.has_ratio:
            yield refused(
                "loss-without-ratio",
                "rllm.algorithm.loss_fn",
                f"Loss {loss.plugin.name!r} has no importance ratio, and {others}.",
                f"Choose a loss with a ratio, such as ppo, or set {CORRECTION}.tis_mode=token.",
            )
        elif recomputes_old_logprobs(plan.config) and not loss.plugin.corrects_rollouts:
            yield refused(
                "uncorrected-rollouts",
                f"{CORRECTION}.bypass_mode",
                f"{CORRECTION}.bypass_mode is false, so ratios use the trained weights' log-probs, and {others}.",
                f"Remove {CORRECTION}.bypass_mode, or set {CORRECTION}.tis_mode=token.",
            )


def truncated_sampling(plan: RunPlan) -> Iterator[Problem]:
    """Check sampling with top-p or top-k: some terms divide by log-probs, and ratios do not correct for truncation."""
    train, tis_mode = plan.config.sampling.train, plan.config.rllm.algorithm.rollout_correction.tis_mode
    settings = {"sampling.train.top_p": train.top_p} if train.top_p < 1 else {}
    settings |= {"sampling.train.top_k": train.top_k} if train.top_k > 0 else {}
    if not settings:
        return
    key, truncated = next(iter(settings)), " and ".join(f"{name}={value}" for name, value in settings.items())
    if not plan.full_logprobs and (tis_mode is not None or SAMPLED in plan.needs):
        who = f"{CORRECTION}.tis_mode={tis_mode}"
        if tis_mode is None:
            chosen = next(entry for entry in (*plan.estimators, *plan.losses) if SAMPLED in entry.plugin.needs)
            who = f"{chosen.plugin.kind.capitalize()} {chosen.plugin.name!r}"
        engine = f"backend {plan.backend.name!r}" if plan.engine is None else f"engine {plan.engine.plugin.name!r}"
        yield refused(
            "missing-logprobs",
            key,
            f"{who} needs the log-probs that the sampler reports, and {engine} reports none under {truncated}.",
            f"Set sampling.train.top_p to 1 and sampling.train.top_k to -1, or do not use {who}.",
        )
    by_sampler = plan.full_logprobs and not recomputes_old_logprobs(plan.config)
    old = "old log-probs are the sampler's" if by_sampler else "the trainer computes old log-probs"
    yield warning(
        "truncated-sampling",
        key,
        f"{truncated}: tokens are sampled from a part of the distribution, and log-probs refer to the whole "
        f"distribution. Importance ratios compare whole distributions ({old}) and do not correct for the truncation",
    )


def divergence_has_a_gradient(plan: RunPlan) -> Iterator[Problem]:
    """Warn about the KL estimator k1, because its gradient is noise."""
    algorithm = plan.config.rllm.algorithm
    if algorithm.kl_beta and algorithm.kl_estimator == "k1":
        yield warning(
            "divergence-without-gradient",
            "rllm.algorithm.kl_estimator",
            "rllm.algorithm.kl_estimator=k1 has a gradient that is 0 on average for any kl_beta. Use k2 or k3 to keep "
            "the policy near the reference model",
        )


def column_sections_are_needed(plan: RunPlan) -> Iterator[Problem]:
    """Check that the run needs a backend's section for one column, such as the critic's section."""
    composed = plan.composed
    for column, section in plan.backend.plugin.column_sections.items():
        for key in sorted(_set_by_user(section, plan)) if column not in plan.needs else ():
            yield unused(
                "unused-key",
                key,
                f"{composed.describe(key)} and has no effect: no estimator or loss of this run needs {column}.",
                f"Choose an estimator that needs {column} with rllm.algorithm.adv_estimator, or remove {key}.",
            )


def _set_by_user(section: str, plan: RunPlan) -> Iterator[str]:
    """Yield the keys of a backend's section that a user set to a value other than the default."""
    values = getattr(plan.composed.backend_config, section)
    for name, field in type(values).model_fields.items():
        if getattr(values, name) != field.get_default(call_default_factory=True):
            key = f"{section}.{name}"
            yield from (given for given in plan.composed.keys_below(key) if plan.composed.is_by_user(given))


CHECKS = (
    bounds_leave_something,
    rejections_have_bounds,
    rollouts_are_corrected_once,
    old_rollouts_are_weighed,
    truncated_sampling,
    divergence_has_a_gradient,
    column_sections_are_needed,
)
"""Functions that take a plan and yield its problems, in the order in which they run."""


def find_problems(plan: RunPlan) -> Iterator[Problem]:
    """Yield the problems that the checks of this module find."""
    for check in CHECKS:
        yield from check(plan)
