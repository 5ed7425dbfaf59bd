"""Plan a run that trains: its name, its saved values if it is resumed, and its directory.

A resumed run keeps its saved values unless the user sets new ones. A run whose user sets no name is called after the
environment and a number, for example ``guess-2``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rllm.config.compose import Composed
from rllm.config.layers import Layer, Tier, layer_from_file, layer_from_keys
from rllm.config.paths import ABSENT, split_key, value_at
from rllm.config.saved_config import FILE_NAME, NUMBERED, read_config, remove_keys
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm.runs.plugin_check import compare_plugins, read_used_packages
from rllm.runs.run_directory import RunDirectory, find_stored_runs, run_directory_path
from rllm_core.errors import ConfigError, RllmError, did_you_mean
from rllm_core.notices import say, warn_once
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_sections import NO_ENVIRONMENT, TrainerSection
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
    find_stored_runs(composed.config.rllm.trainer)
    name = _name_layers(composed, latest=resume or overwrite)
    if resume:
        if not name:
            _require_named_run(run_directory_path(composed.config.rllm.trainer))
        return plan_resumption(lambda lower_layers: compose_over([*lower_layers, *name]))
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
    return [layer_from_keys({NAME_KEY: name}, NUMBERED, Tier.ENVIRONMENT)]


ComposeOver = Callable[[Sequence[Layer]], tuple[Composed, Registry]]
"""Composes the user's configuration over the given layers, and returns it with the registry of plugins."""

OF_ONE_START = (("rllm", "trainer", "val_only"), ("rllm", "trainer", "on_changed_source"))
"""Keys that a resumed run does not keep."""


def plan_resumption(compose_over: ComposeOver) -> RunPlan:
    """Return the plan of a run that continues in the directory that the user's values give.

    The saved values may contain a name from a Python program (``in-process/…``). If the program registers it again, the
    new plugin is used. Otherwise the error reports the missing plugin.

    Raises:
        ConfigError: as `make_plan`, or the user sets a different model than the run started with.
    """
    composed, registry = compose_over([])
    directory = run_directory_path(composed.config.rllm.trainer)
    warn_about_plugins(directory, registry)
    saved = saved_config(directory)
    if saved is None:
        return make_plan(composed, registry)
    # These keys apply only to a single start, so they are not kept.
    composed, registry = compose_over([remove_keys(saved, OF_ONE_START)])
    plan = make_plan(composed, registry)
    _refuse_other_model(plan, saved)
    if changes := changed_settings(composed, saved):
        say("\n".join(("Settings changed since the run started:", *changes)))
    return plan


def warn_about_plugins(run: Path, registry: Registry) -> None:
    """Print a warning for each plugin of a run that is different, missing, broken or ambiguous now."""
    differences = list(compare_plugins(read_used_packages(run), registry))
    for difference in differences:
        warn_once(difference.lines("plugin of the run: "))
    if differences:
        warn_once(f"`rllm plugins verify {run}` shows all plugins of the run.")


def changed_settings(composed: Composed, saved: Layer) -> list[str]:
    """Return a line ``key: old → new`` for each value of the user that differs from the saved one."""
    tree, lines = composed.printable_tree, []
    for key in sorted(composed.by_user):
        path = split_key(key)
        was, now = value_at(saved.tree, path), value_at(tree, path)
        if was != now and path not in OF_ONE_START:
            lines.append(f"  {key}: {'not set' if was is ABSENT else json.dumps(was)} → {json.dumps(now)}")
    return lines


def saved_config(run_directory: Path) -> Layer | None:
    """Return the config that a run was started with, as a layer. None if the directory contains none."""
    file = run_directory / FILE_NAME
    return layer_from_file(file, tier=Tier.SAVED) if file.is_file() else None


def saved_value(saved: Layer, key: str) -> Any:
    """Return a value of a saved config, which may be empty or damaged. None if it has no such value."""
    value = value_at(saved.tree, split_key(key))
    return None if value is ABSENT else value


def _refuse_other_model(plan: RunPlan, saved: Layer) -> None:
    """Reject a different model name, because it would have no effect: the checkpoint's weights replace the model's."""
    key = plan.backend.plugin.model_key
    was, now = saved_value(saved, key), plan.composed.value(key)
    if was is None or plan.composed.origins.get(key) == saved.origin or _same_model(was, now):
        return
    asked = plan.composed.tiers.get(key, Tier.PACKAGED) >= Tier.USER
    raise ConfigError(
        "run-changed",
        f"A resumed run continues with its own weights, and {key} was {was} and is now {now} "
        f"(from {plan.composed.origins[key]}).",
        f"Remove {key}, or start a new run." if asked else f"Set {key}={was} as well, or start a new run.",
    )


def _same_model(one: Any, other: Any) -> bool:
    """True if two names mean the same model. The paths ``./m/`` and ``m`` are the same directory."""
    return one == other or (isinstance(one, str) and isinstance(other, str) and Path(one) == Path(other))


BEFORE: str = TrainerSection.model_fields["experiment_name"].default
"""Name that earlier builds gave to all of these runs."""
_NUMBERED = re.compile(r"(.+)-([0-9]{1,5})")
_LONGEST_STEM = 100


def next_name(project: Path, environment: str) -> str:
    """Return the environment's name with the number after the highest one in the project's directory."""
    stem, numbers = name_stem(environment), [0]
    for each in project.glob("*"):
        match = _NUMBERED.fullmatch(each.name)
        if match and match[1] == stem:
            numbers.append(int(match[2]))
    return f"{stem}-{max(numbers) + 1}"


def latest_name(project: Path, environment: str) -> str | None:
    """Return the name of the environment's numbered run that was started last. None if no such run exists.

    Without an environment, runs of all environments count.
    """
    numbered = [
        (file.stat().st_mtime_ns, file.parent.name)
        for file in project.glob(f"*/{PLUGINS}")
        if file.parent.name == BEFORE or _NUMBERED.fullmatch(file.parent.name)
    ]
    names = (name for _, name in sorted(numbered, reverse=True))
    return next((name for name in names if _has_environment(project / name, environment)), None)


def name_stem(environment: str) -> str:
    """Return an environment's name as a part of a file's name: ``reasoning_gym:chain_sum`` gives
    ``reasoning_gym-chain_sum``."""
    if environment == NO_ENVIRONMENT:
        return "run"
    plugin, colon, rest = environment.partition(":")
    name = plugin.rpartition("/")[2] + colon + rest
    return re.sub(r"[^\w-]+", "-", name).strip("-")[:_LONGEST_STEM] or "run"


def _has_environment(run: Path, environment: str) -> bool:
    if environment == NO_ENVIRONMENT:
        return True
    return (run / FILE_NAME).is_file() and name_stem(read_config(run)["rllm"]["env"]["name"]) == name_stem(environment)
