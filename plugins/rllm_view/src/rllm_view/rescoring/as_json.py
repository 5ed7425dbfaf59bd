"""A rescoring as JSON data; `docs/how-to/rescore.md` documents it. Numbers that do not exist are null."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rllm.planning import ByRole
from rllm_core.contracts.chosen import PluginChoice
from rllm_view.rescoring.rescore import ReplayedStep, Rescored
from rllm_view.rescoring.scores import LossTally, ScoredGroup
from rllm_view.rescoring.summary import Agreement, RoleSummary, applied_to, reproduction_of

SCHEMA_VERSION = 1
"""Raised whenever a name goes or its meaning changes; new names may come without."""


def result_to_json(result: Rescored, summaries: Sequence[RoleSummary]) -> dict[str, Any]:
    """Everything, every trajectory's advantages included."""
    labels = [setup.label for setup in result.setups]
    reproduction = reproduction_of(result)
    return {
        "schema_version": SCHEMA_VERSION,
        "episodes": {
            "path": str(result.source.path),
            "run_folder": None if result.source.run_folder is None else str(result.source.run_folder),
            "files": [str(file) for _, file in result.source.files],
            "count": sum(step.episodes for step in result.steps),
            "skipped_lines": sum(step.skipped_lines for step in result.steps),
        },
        "applied": asdict(applied_to(result)),
        "setups": [
            {"label": setup.label, "of_run": setup.of_run, **_estimators(setup.estimators)} for setup in result.setups
        ],
        "reproduction": None if reproduction is None else asdict(reproduction),
        "roles": [_role(summary) for summary in summaries],
        "losses": [_loss(*key, tally) for key, tally in result.losses.items()],
        "steps": [_step(step) for step in result.steps],
        "groups": [_group(group, labels) for group in result.groups],
    }


def _estimators(estimators: ByRole[PluginChoice[Any]]) -> dict[str, Any]:
    return {
        "estimator": _chosen(estimators.default),
        "by_role": {role: _chosen(chosen) for role, chosen in estimators.by_role.items()},
    }


def _chosen(chosen: PluginChoice[Any]) -> dict[str, Any]:
    return {"name": chosen.registered.qualified_name, "options": chosen.params.model_dump(mode="json")}


def _role(summary: RoleSummary) -> dict[str, Any]:
    reference = summary.setups[0].label
    return {
        "role": summary.role,
        "groups": summary.groups,
        "trajectories": summary.trajectories,
        "setups": [
            {name: value for name, value in vars(metrics).items() if name != "agreement"} for metrics in summary.setups
        ],
        "comparisons": [
            _comparison(metrics.label, reference, metrics.agreement)
            for metrics in summary.setups
            if metrics.agreement is not None
        ],
    }


def _comparison(setup: str, reference: str, agreed: Agreement) -> dict[str, Any]:
    return {
        "label": setup,
        "reference": reference,
        "signs": asdict(agreed.signs),
        "correlation": agreed.correlation,
        "largest_differences": [
            {
                "step": entry.group.step,
                "group_id": entry.group.group_id,
                "episode": entry.group.members[entry.member].episode,
                "uid": entry.group.members[entry.member].uid,
                "reward": float(entry.group.rewards[entry.member]),
                "reference_advantage": entry.reference,
                "advantage": entry.other,
            }
            for entry in agreed.largest
        ],
    }


def _loss(role: str, setup: str, loss: str, tally: LossTally) -> dict[str, Any]:
    return {
        "role": role,
        "setup": setup,
        "loss": loss,
        "value": tally.loss,
        "mean_absolute_gradient": tally.mean_gradient,
        "tokens": tally.tokens,
        "tokens_without_gradient": tally.zero / tally.tokens,
        "tokens_silenced": tally.silenced / tally.tokens,
    }


def _step(step: ReplayedStep) -> dict[str, Any]:
    return {
        "step": step.step,
        "episodes": step.episodes,
        "skipped_lines": step.skipped_lines,
        "skip_reason": step.skip_reason or None,
        "metrics": {label: dict(metrics) for label, metrics in step.metrics.items()},
    }


def _group(group: ScoredGroup, labels: Sequence[str]) -> dict[str, Any]:
    return {
        "step": group.step,
        "group_id": group.group_id,
        "role": group.role,
        "size": len(group.members),
        "reward_mean": group.reward_mean,
        "reward_std": group.reward_std,
        "without_signal": [label for label, signal in zip(labels, group.signal, strict=True) if not signal],
        "trajectories": [
            {
                "episode": member.episode,
                "uid": member.uid,
                "reward": float(group.rewards[index]),
                "response_length": int(group.lengths[index]),
                "turns": int(group.turns[index]),
                "advantages": {
                    label: {"mean": _number(mean), "std": _number(std)}
                    for label, mean, std in zip(
                        labels, group.advantages[:, index], group.deviations[:, index], strict=True
                    )
                },
            }
            for index, member in enumerate(group.members)
        ],
    }


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
