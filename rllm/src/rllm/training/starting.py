"""Plan a run that trains: its name, its saved values if it is resumed, and its directory."""

from __future__ import annotations

from collections.abc import Callable

from rllm.config.compose import Composed
from rllm.config.layers import Layer, Tier, layer_from_dotted
from rllm.config.whole import NUMBERED
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import PLUGINS, RunDirectory, run_directory_path
from rllm.runs.run_names import latest_name, next_name
from rllm.training.resuming import ComposeOver, plan_resumed
from rllm_core.errors import ConfigError, RllmError, did_you_mean
from rllm_core.plugins.registry import Registry

NAME_KEY = "rllm.trainer.experiment_name"
SHOWN = 5
"""Maximum number of runs in a hint."""


def plan_run(compose_over: ComposeOver, *, resume: bool, overwrite: bool) -> RunPlan:
    """Return the plan of a run. If the user sets no name, it has the environment's name and a number.

    This is the latest number with `resume` or `overwrite`, and the next number otherwise.
    """
    composed, registry = compose_over([])
    name = _name_layers(composed, latest=resume or overwrite)
    if resume:
        _require_run(composed, registry, is_named=not name)
        return plan_resumed(lambda beneath: compose_over([*beneath, *name]))
    return make_plan(*(compose_over(name) if name else (composed, registry)))


def open_run(
    plan: RunPlan, plan_again: Callable[[], RunPlan], *, resume: bool, overwrite: bool
) -> tuple[RunPlan, RunDirectory]:
    """Open the run's directory. If a different process took its number meanwhile, the run gets the next number.

    Raises:
        RllmError: as `RunDirectory.open`.
    """
    while True:
        trainer = plan.config.rllm.trainer
        try:
            return plan, RunDirectory.open(trainer, resume=resume, overwrite=overwrite)
        except RllmError:
            plan = plan_again()
            if plan.config.rllm.trainer == trainer:
                raise


def _require_run(composed: Composed, registry: Registry, *, is_named: bool) -> None:
    """Check that the run that the user named exists, also if its name is written like an environment.

    Raises:
        ConfigError: there is no directory of this run. The hint has runs with similar names.
    """
    path, environment = run_directory_path(composed.config.rllm.trainer), composed.config.rllm.env.name
    runs = sorted(each.parent.name for each in path.parent.glob(f"*/{PLUGINS}"))
    if is_named and not path.is_dir():
        some = f"{did_you_mean(path.name, runs)} Its runs are {', '.join(runs[:SHOWN])}.".lstrip() if runs else ""
        raise ConfigError(
            "run-not-found",
            f"{path} does not exist, so no run can be resumed.",
            some or "Remove --resume to start a new run.",
        )
    known = {entry.name for entry in registry.all("environment")}
    if not is_named and environment.partition(":")[0] not in known and (close := did_you_mean(environment, runs)):
        raise ConfigError(
            "run-not-found",
            f"There is no environment {environment!r} to resume, and names of runs have their own key.",
            f"Write --resume {NAME_KEY}=NAME. {close}",
        )


def _name_layers(composed: Composed, *, latest: bool) -> list[Layer]:
    """Return a layer with the name of the run. Empty if the user set a name."""
    if composed.tiers[NAME_KEY] > Tier.PACKAGED:
        return []
    project, environment = run_directory_path(composed.config.rllm.trainer).parent, composed.config.rllm.env.name
    name = (latest_name(project, environment) if latest else None) or next_name(project, environment)
    return [layer_from_dotted({NAME_KEY: name}, NUMBERED, Tier.ENVIRONMENT)]
