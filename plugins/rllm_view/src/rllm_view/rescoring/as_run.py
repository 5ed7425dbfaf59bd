"""How far a replay is the run's own: the rules it applied, and whether the advantages that the run logged come out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rllm.runs.metrics_file import METRICS, read_metrics
from rllm_core.algorithms.filtering import masked_reasons
from rllm_view.rescoring.rescore import NO_REJECTION, Rescored

PREFIX = "advantage/"
TOLERANCE = 1e-6
"""Relative; the same computation on another machine may add in another order."""


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The rules of a replay. Plugins are given by their qualified names."""

    grouping: str
    on_missing_reward: str
    masked: tuple[str, ...]
    """Termination reasons whose rollouts were dropped."""
    mask_truncated: bool
    """True if trajectories with a truncated last response were dropped."""
    rejection: str
    run_rejection: str | None
    """The run's rejection mode. None if it rejected no groups, or if the mode is unknown."""
    use_precomputed_advantage: bool
    """True if groups with precomputed advantages keep them, under every setup."""
    normalize_by_steps: bool
    loss_agg_mode: str
    stages_not_replayed: tuple[str, ...]
    """Stages of the run from other packages than the core."""
    own_left_out: str | None
    """Why the run's own estimators are not the reference; None where they are, or others were asked for."""


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One figure that is not what the run logged."""

    step: int
    metric: str
    logged: float | None
    replayed: float | None


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """Comparison of the run's own estimators, replayed, with its ``metrics.jsonl``."""

    steps: int
    """Number of compared steps."""
    equal: int
    """Number of steps whose ``advantage/…`` metrics are all equal."""
    first_deviation: Deviation | None


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
        stages_not_replayed=result.third_party_stages,
        own_left_out=result.own_left_out or None,
    )


def reproduction_of(result: Rescored) -> Reproduction | None:
    """None where other estimators or other rules than the run's were asked for, or it left no metrics."""
    own = next((setup for setup in result.setups if setup.of_run), None)
    folder = result.source.run_folder
    if own is None or folder is None or not result.as_run or not (folder / METRICS).is_file():
        return None
    logged: dict[int, dict[str, float | None]] = {}
    for line in read_metrics(folder):
        logged.setdefault(line["step"], {}).update(_advantages(line))
    compared = [step for step in result.steps if step.step in logged]
    deviations = [
        _deviation(step.step, logged[step.step], _advantages(step.metrics.get(own.label, {}))) for step in compared
    ]
    return Reproduction(
        steps=len(compared),
        equal=deviations.count(None),
        first_deviation=next((deviation for deviation in deviations if deviation is not None), None),
    )


def _advantages(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: value for name, value in metrics.items() if name.startswith(PREFIX)}


def _deviation(step: int, logged: Mapping[str, float | None], replayed: Mapping[str, float | None]) -> Deviation | None:
    for metric in sorted(logged.keys() | replayed.keys()):
        was, now = logged.get(metric), replayed.get(metric)
        equal = was == now if was is None or now is None else math.isclose(was, now, rel_tol=TOLERANCE, abs_tol=1e-9)
        if not equal:
            return Deviation(step=step, metric=metric, logged=was, replayed=now)
    return None
