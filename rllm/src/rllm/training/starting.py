"""Plan a run that trains: its name, its saved values if it is resumed, and its directory."""

from __future__ import annotations

from collections.abc import Callable

from rllm.config.compose import Composed
from rllm.config.layers import Layer, Tier, layer_from_dotted
from rllm.config.whole import NUMBERED
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import RunDirectory, run_directory_path
from rllm.runs.run_names import latest_name, next_name
from rllm.training.resuming import ComposeOver, plan_resumed
from rllm_core.errors import RllmError

NAME_KEY = "rllm.trainer.experiment_name"


def plan_run(compose_over: ComposeOver, *, resume: bool, overwrite: bool) -> RunPlan:
    """Return the plan of a run. If the user sets no name, it has the environment's name and a number.

    This is the latest number with `resume` or `overwrite`, and the next number otherwise.
    """
    composed, registry = compose_over([])
    name = _name_layers(composed, latest=resume or overwrite)
    if resume:
        return plan_resumed(lambda beneath: compose_over([*beneath, *name]))
    return make_plan(*(compose_over(name) if name else (composed, registry)))


def open_run(
    plan: RunPlan, plan_again: Callable[[], RunPlan], *, resume: bool, overwrite: bool
) -> tuple[RunPlan, RunDirectory]:
    """Open the run's directory. If another process took its number meanwhile, the run gets the next number.

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


def _name_layers(composed: Composed, *, latest: bool) -> list[Layer]:
    """Return a layer with the name of the run. Empty if the user set a name."""
    if composed.tiers[NAME_KEY] > Tier.PACKAGED:
        return []
    project, environment = run_directory_path(composed.config.rllm.trainer).parent, composed.config.rllm.env.name
    name = (latest_name(project, environment) if latest else None) or next_name(project, environment)
    return [layer_from_dotted({NAME_KEY: name}, NUMBERED, Tier.ENVIRONMENT)]
