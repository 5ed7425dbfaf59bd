"""What a plan says about KL divergence, rollout correction and the critic: contradictions are errors."""

from __future__ import annotations

from collections.abc import Iterator

from rllm_core.config.unused import UnusedKeys
from rllm_core.contracts.backend import recomputes_old_logprobs
from rllm_core.errors import ConfigError
from rllm_core.planning.plan import RunPlan

SAMPLED = "sampling_logprobs"


def check_terms(plan: RunPlan, unused: UnusedKeys) -> None:
    """Check a plan whose idle values are back at their defaults.

    Raises:
        ConfigError: bounds that leave nothing between them, rollout correction around a loss that corrects by itself,
            or a user's value for a column that nobody needs.
    """
    _check_bounds(plan)
    _check_corrected_once(plan)
    _check_truncated(plan)
    _check_column_sections(plan, unused)


def doubts_about_terms(plan: RunPlan) -> Iterator[str]:
    """What will work, but perhaps not as meant."""
    algorithm = plan.config.rllm.algorithm
    if truncated := _truncated(plan):
        by_sampler = plan.full_logprobs and not recomputes_old_logprobs(plan.config)
        old = "old log-probs are the sampler's" if by_sampler else "the trainer computes old log-probs"
        yield (
            f"{truncated}: tokens are sampled from a part of the distribution, and log-probs are those of all of it. "
            f"Importance ratios compare whole distributions ({old}); they do not correct for the truncation"
        )
    if algorithm.kl_beta and algorithm.kl_estimator == "k1":
        yield (
            "rllm.algorithm.kl_estimator=k1 has a gradient that is 0 on average, whatever kl_beta is: k2 and k3 are "
            "those that hold the policy near the reference model"
        )


def _check_bounds(plan: RunPlan) -> None:
    correction = plan.config.rllm.algorithm.rollout_correction
    if correction.tis_mode is not None and correction.tis_floor >= correction.tis_cap:
        at = "rllm.algorithm.rollout_correction"
        raise ConfigError(
            f"{at}.tis_floor is {correction.tis_floor} and {at}.tis_cap is {correction.tis_cap}: every ratio is below "
            "the one or above the other.",
            "Set a floor below 1 and a cap above 1; tokens that were as likely to be sampled as trained have ratio 1.",
        )


def _check_corrected_once(plan: RunPlan) -> None:
    """Weighing by the ratio to the sampler twice squares it, which corrects for nothing."""
    key, mode = "rllm.algorithm.rollout_correction.tis_mode", plan.config.rllm.algorithm.rollout_correction.tis_mode
    chosen = {"": plan.losses.default} | {f" of role {role!r}": loss for role, loss in plan.losses.by_role.items()}
    for whose, loss in chosen.items():
        if mode is not None and loss.plugin.corrects_rollouts:
            raise ConfigError(
                f"{plan.composed.given(key)}, and loss {loss.plugin.name!r}{whose} weighs tokens by the ratio to the "
                "policy that sampled already: it would count twice.",
                f"Set {key} to null, or choose another loss with rllm.algorithm.loss_fn or rllm.algorithm.loss_map.",
            )


def _truncated(plan: RunPlan) -> str:
    """The settings by which training rollouts leave tokens out; empty where none does."""
    train = plan.config.sampling.train
    settings = [f"sampling.train.top_p={train.top_p}"] if train.top_p < 1 else []
    settings += [f"sampling.train.top_k={train.top_k}"] if train.top_k > 0 else []
    return " and ".join(settings)


def _check_truncated(plan: RunPlan) -> None:
    """What divides by the sampler's log-probs cannot do without them."""
    truncated, tis_mode = _truncated(plan), plan.config.rllm.algorithm.rollout_correction.tis_mode
    if not truncated or plan.full_logprobs or (tis_mode is None and SAMPLED not in plan.needs):
        return
    who = f"rllm.algorithm.rollout_correction.tis_mode={tis_mode}"
    if tis_mode is None:
        chosen = next(entry for entry in (*plan.estimators, *plan.losses) if SAMPLED in entry.plugin.needs)
        who = f"{chosen.plugin.kind.capitalize()} {chosen.plugin.name!r}"
    engine = f"backend {plan.backend.name!r}" if plan.engine is None else f"engine {plan.engine.plugin.name!r}"
    raise ConfigError(
        f"{who} needs the log-probs that the sampler reports, and {engine} reports none under {truncated}.",
        "Set sampling.train.top_p to 1 and sampling.train.top_k to -1, or leave the former out.",
    )


def _check_column_sections(plan: RunPlan, unused: UnusedKeys) -> None:
    composed = plan.composed
    for column, section in plan.backend.plugin.column_sections.items():
        if column in plan.needs:
            continue
        for key in sorted(_set_by_user(section, plan)):
            unused.found(
                f"{composed.given(key)} and has no effect: no estimator or loss of this run needs {column}.",
                f"Choose an estimator that needs {column} with rllm.algorithm.adv_estimator, or leave it out.",
            )


def _set_by_user(section: str, plan: RunPlan) -> Iterator[str]:
    """Keys of a backend's section that a user gave another value than the default."""
    values = getattr(plan.composed.backend_config, section)
    for name, field in type(values).model_fields.items():
        if getattr(values, name) != field.get_default(call_default_factory=True):
            key = f"{section}.{name}"
            yield from (given for given in plan.composed.beneath(key) if plan.composed.is_by_user(given))
