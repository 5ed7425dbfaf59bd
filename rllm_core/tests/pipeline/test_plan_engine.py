"""The rollout engine: chosen by name with options, of a backend that hosts one, or the run stops before it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from expecting import expect_error

from rllm.config.compose import compose
from rllm.config.layers import Tier, layer_from_dotted
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm.planning.preflight import check_to_train
from rllm_core.contracts.plugin import Params
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins.registry import Registry

KEY = "rllm.rollout.engine"
MakePlan = Callable[..., RunPlan]


class FastParams(Params):
    threads: int = 1


def _missing() -> Any:
    raise PluginError("made-up", "engine 'fast' needs the package fast.", "pip install fast")


@pytest.fixture(autouse=True)
def _engines(registry: Registry, offer: Any) -> None:
    """Add an engine `fast`, and a backend `host` like `probe`, that hosts engines."""
    offer("engine", "fast", params=FastParams, load=_missing, distribution="rllm-fast")
    probe = registry.get("backend", "probe").plugin
    registry.add(replace(probe, name="host", config_keys=probe.config_keys | {KEY}))


def test_a_run_has_the_backend_s_own_engine_unless_one_is_named(plan: MakePlan) -> None:
    made = plan({"rllm.backend": "host"})
    assert made.engine is None
    assert not [entry for entry in made.registered() if entry.kind == "engine"]


@pytest.mark.parametrize(
    ("choice", "threads"), [("fast", 1), ("rllm-fast/fast", 1), ({"name": "fast", "threads": 3}, 3)]
)
def test_it_is_named_as_every_plugin_is(plan: MakePlan, choice: Any, threads: int) -> None:
    made = plan({"rllm.backend": "host", KEY: choice})
    engine = made.engine
    assert engine is not None
    assert (engine.qualified_name, engine.params) == ("rllm-fast/fast", FastParams(threads=threads))
    assert [entry.name for entry in made.registered() if entry.kind == "engine"] == ["fast"]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("quick", ("unknown-plugin", "rllm.rollout.engine", "'quick'")),
        ("", ("bad-choice", "rllm.rollout.engine")),
        ("vllm", ("blocked-plugin", "'vllm'")),
        ({"name": "fast", "thread": 3}, ("unknown-option", "rllm.rollout.engine.thread", "'fast'")),
        ({"name": "fast", "threads": "3"}, ("wrong-value", "rllm.rollout.engine.threads", "'3'")),
    ],
)
def test_a_choice_that_cannot_be_used_is_refused(plan: MakePlan, choice: Any, message: tuple[str, ...]) -> None:
    with expect_error(ConfigError, *message):
        plan({"rllm.backend": "host", KEY: choice})


def test_a_backend_that_hosts_none_ends_the_run(plan: MakePlan) -> None:
    values = ("`rllm.rollout.engine`", '"fast"', "my.yaml", "config_keys={", "'rllm.rollout.engine'")
    with expect_error(ConfigError, "unused-key", *values):
        plan({KEY: "fast"})


def test_an_earlier_run_s_engine_is_left_out_where_the_backend_hosts_none(registry: Registry) -> None:
    layers = [layer_from_dotted({KEY: "fast", "rllm.backend": "probe"}, "config.yaml of the run", Tier.SAVED)]
    made = make_plan(compose(registry, layers), registry)
    assert made.engine is None
    assert made.config.rllm.rollout.engine is None
    assert any("rllm.rollout.engine" in line and "fast" in line for line in made.warnings)


def test_what_an_engine_needs_and_is_not_installed_ends_the_run_before_it_starts(plan: MakePlan) -> None:
    made = plan({"rllm.backend": "host", KEY: "fast"})
    with expect_error(PluginError, "made-up", "pip install fast"):
        check_to_train(made, [Task(id="a"), Task(id="b")], [])
