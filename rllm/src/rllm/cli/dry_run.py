"""Output of `--dry-run` as text or JSON: the stage graph, plugins, losses, and every value with its origin."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from rllm.config.keys import DEFAULT
from rllm.config.paths import leaves
from rllm.planning.async_training import recommend
from rllm.planning.plan import RunPlan
from rllm.planning.plan_losses import losses_in_force
from rllm.rows.summary import RowSummary
from rllm_core.contracts.backend import Footprint
from rllm_core.contracts.chosen import Registered
from rllm_core.pipeline.graph import count_rollout_stages
from rllm_record.terminal import print_table

if TYPE_CHECKING:
    from rllm.cli.estimate import Estimate
    from rllm.planning.lengths import Lengths

BY_DERIVATION = ", by derivation"
"""How the origin of a value ends that a backend derives from others."""


def show_plan(plan: RunPlan, keys: Collection[str]) -> None:
    """Print a plan with the values of these keys."""
    click.echo("Stages of a training step, in order:")
    print_table(
        ("stage", "from", "reads", "writes"),
        [
            (
                stage.plugin.name,
                stage.registered.distribution,
                ", ".join(sorted(stage.plugin.reads)),
                ", ".join(sorted(stage.plugin.writes)),
            )
            for stage in plan.stages
        ],
    )
    click.echo("\nPlugins:")
    print_table(
        ("kind", "name", "distribution", "version"),
        [(entry.kind, entry.name, entry.distribution, entry.version) for entry in _list_plugins(plan)],
        bold=1,
    )
    click.echo("\nLosses:")
    show_losses(plan)
    for line in (*batches_ahead(plan), *list_recommendations(plan)):
        click.echo(line)
    others = len(plan.composed.origins) - len(keys)
    click.echo("\nConfig" + (f" ({others} other values are defaults; --all shows them):" if others else ":"))
    show_values(plan, keys)
    for line in (*plan.warnings, *_show_footprint(plan)):
        click.echo(f"warning: {line}", err=True)


def describe_plan(
    plan: RunPlan, keys: Collection[str], data: Iterable[RowSummary | Lengths], estimate: Estimate | None
) -> dict[str, Any]:
    """Return the output of `--dry-run` as data for JSON, with the values of these keys."""
    footprint = _find_footprint(plan)
    return {
        "data": [each.values() for each in data],
        "estimate": None if estimate is None else asdict(estimate),
        "stages": [
            {
                "name": stage.plugin.name,
                "distribution": stage.registered.distribution,
                "reads": sorted(stage.plugin.reads),
                "writes": sorted(stage.plugin.writes),
            }
            for stage in plan.stages
        ],
        "plugins": [
            {"kind": entry.kind, "name": entry.name, "distribution": entry.distribution, "version": entry.version}
            for entry in _list_plugins(plan)
        ],
        "losses": [asdict(entry) for entry in losses_in_force(plan)],
        "batches_ahead": plan.batches_ahead,
        "recommendations": [asdict(each) for each in recommend(plan)],
        "values": list_values(plan, keys),
        "footprint": None if footprint is None else {"title": footprint.title, "rows": dict(footprint.rows)},
        "warnings": [*plan.warnings, *(() if footprint is None else footprint.warnings)],
    }


def _list_plugins(plan: RunPlan) -> list[Registered[Any]]:
    """Return the plugins of a run without its stages, sorted by kind."""
    return sorted((entry for entry in plan.registered() if entry.kind != "stage"), key=lambda entry: entry.kind)


def show_data(summaries: Iterable[RowSummary | Lengths]) -> None:
    """Print the content of a run's data sources."""
    for line in (line for summary in summaries for line in summary.lines()):
        click.echo(line)


def show_losses(plan: RunPlan) -> None:
    """Print the loss of each role, and the estimator that it belongs to if the run has one."""
    entries = losses_in_force(plan)
    if not plan.estimates:
        rows = [("all" if entry.role is None else entry.role, entry.loss, entry.origin) for entry in entries]
        print_table(("role", "loss", "from"), rows)
        return
    print_table(
        ("role", "estimator", "loss", "from", "default of the estimator"),
        [
            (
                "all" if entry.role is None else entry.role,
                entry.estimator,
                entry.loss,
                entry.origin,
                "the same" if entry.is_default else f"{entry.default} ({entry.word(entry.default)})",
            )
            for entry in entries
        ],
    )


def batches_ahead(plan: RunPlan) -> Iterator[str]:
    """Yield lines that describe asynchronous training in this run. Yield nothing if it is synchronous or only
    validates."""
    ahead, section = plan.batches_ahead, plan.config.rllm.async_training
    if not ahead or plan.config.rllm.trainer.val_only:
        return
    rollout_stages = ", ".join(stage.plugin.name for stage in plan.stages[: count_rollout_stages(plan.stages)])
    correction = plan.config.rllm.algorithm.rollout_correction
    fixed = f"fixed version: the weights of {_steps(ahead)} before"
    weights = fixed if section.pins_weights else "latest version"
    old = "the sampler's" if correction.bypass_mode else "the trainer's"
    weighting = (
        f"weighted by their ratio to the sampler's, per {correction.tis_mode}" if correction.tis_mode else "as is"
    )
    weighting += f", rejected by {', '.join(correction.reject)}" if correction.reject else ""
    yield f"\nGenerated ahead: {_steps(ahead)}. No token is more than {_updates(section.staleness)} old"
    rows = [("stages", rollout_stages), ("weights", weights), ("old log-probs", f"{old}, {weighting}")]
    yield from (f"  {name:14}{value}" for name, value in rows)


def list_recommendations(plan: RunPlan) -> Iterator[str]:
    """Yield lines with the settings that an asynchronous run should change, and why. Yield nothing if it has none."""
    found = {f"{each.key}={json.dumps(each.value)}": each.reason for each in recommend(plan)}
    if found:
        width = max(map(len, found))
        yield "\nRecommended, because tokens are older (docs/how-to/off-policy.md):"
        yield from (f"  {setting:{width}}  {reason}" for setting, reason in found.items())


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number} steps"


def _updates(number: int) -> str:
    return "1 update" if number == 1 else f"{number} updates"


def _show_footprint(plan: RunPlan) -> tuple[str, ...]:
    """Print the run's memory and other resources, if the backend can estimate them. Return its warnings."""
    found = _find_footprint(plan)
    if not found:
        return ()
    if found.rows:
        click.echo(f"\n{found.title}:")
        print_table((), found.rows)
    return found.warnings


def _find_footprint(plan: RunPlan) -> Footprint | None:
    estimate = plan.backend.plugin.footprint
    return None if estimate is None else estimate(plan.composed.backend_config, plan.config, plan.needs)


def chosen_keys(plan: RunPlan) -> list[str]:
    """Return the keys whose values differ from the defaults of the core and the backend, and the model's key."""
    packaged = (DEFAULT, f"backend {plan.backend.name}")
    return [
        key
        for key, origin in plan.composed.origins.items()
        if key == plan.backend.plugin.model_key
        or not (origin.partition(", ")[0] in packaged or origin.endswith(BY_DERIVATION))
    ]


def show_values(plan: RunPlan, keys: Collection[str]) -> None:
    """Print the values of some keys of a plan with their origins."""
    rows = [(each["key"], json.dumps(each["value"]), each["origin"]) for each in list_values(plan, keys)]
    print_table(("key", "value", "origin"), rows)


def list_values(plan: RunPlan, keys: Collection[str]) -> list[dict[str, Any]]:
    """Return the fields ``key``, ``value`` and ``origin`` of some keys of a plan."""
    values = [(".".join(path), value) for path, value in leaves(plan.composed.printable_tree)]
    return [{"key": key, "value": value, "origin": plan.composed.origin(key)} for key, value in values if key in keys]
