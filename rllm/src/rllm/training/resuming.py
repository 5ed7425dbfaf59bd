"""Plan a resumed run. It keeps its saved values unless the user sets new ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rllm.config.compose import Composed
from rllm.config.layers import Layer, Tier, layer_from_file
from rllm.config.paths import ABSENT, split_key, value_at
from rllm.config.saved_config import FILE_NAME, remove_keys
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import run_directory_path
from rllm_core.errors import ConfigError
from rllm_core.notices import say
from rllm_core.plugins.registry import Registry

ComposeOver = Callable[[Sequence[Layer]], tuple[Composed, Registry]]
"""Composes the user's configuration over the given layers, and returns it with the registry of plugins."""

OF_ONE_START = (("rllm", "trainer", "val_only"), ("rllm", "trainer", "on_changed_source"))
"""Keys that a resumed run does not keep."""


def plan_resumed(compose_over: ComposeOver) -> RunPlan:
    """Return the plan of a run that continues in the directory that the user's values give.

    The saved values may contain a name from a Python program (``in-process/…``). If the program registers it again, the
    new plugin is used. Otherwise the error reports the missing plugin.

    Raises:
        ConfigError: as `make_plan`, or the user sets a different model than the run started with.
    """
    composed, registry = compose_over([])
    saved = saved_config(run_directory_path(composed.config.rllm.trainer))
    if saved is None:
        return make_plan(composed, registry)
    # These keys apply only to a single start, so they are not kept.
    composed, registry = compose_over([remove_keys(saved, OF_ONE_START)])
    plan = make_plan(composed, registry)
    _refuse_other_model(plan, saved)
    if changes := changed_settings(composed, saved):
        say("\n".join(("Settings changed since the run started:", *changes)))
    return plan


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
