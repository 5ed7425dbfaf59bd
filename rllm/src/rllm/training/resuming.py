"""A resumed run keeps the values it was started with, unless others are set now (decision 0007)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rllm.config.compose import Composed
from rllm.config.layers import Layer, Tier, layer_from_file
from rllm.config.paths import ABSENT, path_of, value_at
from rllm.config.save import FILE_NAME
from rllm.config.whole import forget
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import run_directory_path
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry

ComposeOver = Callable[[Sequence[Layer]], tuple[Composed, Registry]]
"""Composes what a user asks for over the given layers, and says with which plugins."""

OF_ONE_START = (("rllm", "trainer", "val_only"), ("rllm", "trainer", "on_changed_source"))
"""Keys that a resumed run does not keep."""


def plan_resumed(compose_over: ComposeOver) -> RunPlan:
    """The plan of a run that goes on in the folder which the user's values lead to.

    A name of something in a Python program (``in-process/…``) lies beneath too: where the program gives it again, that
    one is above it; where not, the error says what is missing.

    Raises:
        ConfigError: what `make_plan` raises, or another model is asked for than the run was started with.
    """
    composed, registry = compose_over([])
    saved = saved_config(run_directory_path(composed.config.rllm.trainer))
    if saved is None:
        return make_plan(composed, registry)
    # What was asked of one start only is not a property of the run.
    composed, registry = compose_over([forget(saved, OF_ONE_START)])
    plan = make_plan(composed, registry)
    _refuse_other_model(plan, saved)
    return plan


def saved_config(run_directory: Path) -> Layer | None:
    """The config a run was started with, as a layer; None when the folder holds none."""
    file = run_directory / FILE_NAME
    return layer_from_file(file, tier=Tier.SAVED) if file.is_file() else None


def saved_value(saved: Layer, key: str) -> Any:
    """A value of a saved config, which may be empty or damaged; None where it has none."""
    value = value_at(saved.tree, path_of(key))
    return None if value is ABSENT else value


def _refuse_other_model(plan: RunPlan, saved: Layer) -> None:
    """The checkpoint's weights replace those of the model that is named now, so naming another has no effect."""
    key = plan.backend.plugin.model_key
    was, now = saved_value(saved, key), plan.composed.value(key)
    if was is None or plan.composed.origins.get(key) == saved.origin or _same_model(was, now):
        return
    asked = plan.composed.tiers.get(key, Tier.PACKAGED) >= Tier.USER
    raise ConfigError(
        "run-changed",
        f"A resumed run goes on with its own weights; {key} was {was} and is now {now} "
        f"(from {plan.composed.origins[key]}).",
        "Leave it out, or start a new run." if asked else f"Set {key}={was} as well, or start a new run.",
    )


def _same_model(one: Any, other: Any) -> bool:
    """Also where a folder is written as ``./m/`` and as ``m``."""
    return one == other or (isinstance(one, str) and isinstance(other, str) and Path(one) == Path(other))
