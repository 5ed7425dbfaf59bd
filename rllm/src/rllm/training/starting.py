"""Plan a run that trains: its name, its saved values if it is resumed, and its directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rllm.config.compose import Composed
from rllm.config.layers import Layer, Tier, layer_from_dotted
from rllm.config.saved_config import NUMBERED
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import RunDirectory, run_directory_path
from rllm.runs.run_names import latest_name, next_name
from rllm.training.resuming import ComposeOver, plan_resumed
from rllm_core.errors import ConfigError, RllmError, did_you_mean
from rllm_record.run_files import PLUGINS

NAME_KEY = "rllm.trainer.experiment_name"
SHOWN = 5
"""Maximum number of runs in a hint."""


def plan_run(compose_over: ComposeOver, *, resume: bool, overwrite: bool) -> RunPlan:
    """Return the plan of a run. If the user sets no name, it has the environment's name and a number.

    This is the latest number with `resume` or `overwrite`, and the next number otherwise.
    """
    with _explain_names_of_runs(resume):
        composed, registry = compose_over([])
    name = _name_layers(composed, latest=resume or overwrite)
    if resume:
        if not name:
            _require_named_run(run_directory_path(composed.config.rllm.trainer))
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


def _require_named_run(path: Path) -> None:
    """Check that the directory of a run that the user named exists.

    Raises:
        ConfigError: it does not exist. The hint has runs with similar names.
    """
    if path.is_dir():
        return
    runs = sorted(each.parent.name for each in path.parent.glob(f"*/{PLUGINS}"))
    some = f"{did_you_mean(path.name, runs)} Its runs are {', '.join(runs[:SHOWN])}.".lstrip() if runs else ""
    raise ConfigError(
        "run-not-found",
        f"{path} does not exist, so no run can be resumed.",
        some or "Remove --resume to start a new run.",
    )


@contextmanager
def _explain_names_of_runs(resume: bool) -> Iterator[None]:
    """Add the key for a run's name to the error about an unknown environment. Users write ``--resume NAME``."""
    try:
        yield
    except RllmError as error:
        if resume and error.code == "unknown-plugin" and "`rllm.env.name`" in error.message:
            hint = f"{error.hint} To resume a run by its name, write --resume {NAME_KEY}=NAME."
            raise type(error)(error.code, error.message, hint) from error
        raise


def _name_layers(composed: Composed, *, latest: bool) -> list[Layer]:
    """Return a layer with the name of the run. Empty if the user set a name."""
    if composed.tiers[NAME_KEY] > Tier.PACKAGED:
        return []
    project, environment = run_directory_path(composed.config.rllm.trainer).parent, composed.config.rllm.env.name
    name = (latest_name(project, environment) if latest else None) or next_name(project, environment)
    return [layer_from_dotted({NAME_KEY: name}, NUMBERED, Tier.ENVIRONMENT)]
