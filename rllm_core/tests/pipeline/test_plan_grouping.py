"""What is said before a run starts about groups that compare nothing, and about roles that are not told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from expecting import check_values, expect_error

from rllm.config.compose import compose
from rllm.config.layers import Tier, layer_from_keys
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm.planning.preflight import check_to_train
from rllm_core.contracts.params import Params
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins.registry import Registry

MakePlan = Callable[..., RunPlan]
ONE_ROLE = "workflow single_turn_workflow"


@pytest.fixture(autouse=True)
def _strangers(offer: Any) -> None:
    """A workflow that may have any roles, and a grouping that does not declare its comparison."""
    offer("workflow", "any_roles")
    offer("grouping", "own_way")


@pytest.mark.parametrize(
    ("grouping", "n", "tasks", "causes"),
    [
        ("task_role", 1, 8, ["rllm.rollout.n=1"]),
        ("task_role", 2, 1, None),
        ("task", 1, 8, ["rllm.rollout.n=1", ONE_ROLE]),
        ("task", 2, 1, None),
        ("role", 1, 1, ["rllm.rollout.n=1", "data.train_batch_size=1"]),
        ("role", 1, 2, None),
        ("role", 2, 1, None),
        ("episode", 8, 8, [ONE_ROLE]),
        ("own_way", 1, 1, None),
    ],
)
def test_groups_of_one_are_warned_of(plan: MakePlan, grouping: str, n: int, tasks: int, causes: Any) -> None:
    settings = {"rllm.transform.grouping": grouping, "rllm.rollout.n": n, "data.train_batch_size": tasks}
    warnings = plan(settings).warnings
    assert len(warnings) == (causes is not None)
    for line in warnings:
        check_values(line, *(causes or ()), "estimator grpo")


@pytest.mark.parametrize(
    "settings",
    [
        {"rllm.workflow.name": "any_roles", "rllm.transform.grouping": "task", "rllm.rollout.n": 1},
        {"rllm.workflow.name": "any_roles", "rllm.transform.grouping": "episode", "rllm.rollout.n": 1},
        {"rllm.transform.grouping": "episode", "rllm.algorithm.adv_estimator": "reinforce"},
        {
            "rllm.transform.grouping": "role",
            "rllm.rollout.n": 1,
            "data.train_batch_size": 1,
            "rllm.rejection_sample.enable": True,
            "rllm.rejection_sample.multiplier": 2,
        },
    ],
    ids=str,
)
def test_groups_that_may_be_larger_cause_no_warning(plan: MakePlan, settings: dict[str, Any]) -> None:
    assert plan(settings).warnings == ()


def test_workflow_with_repeated_roles_gives_a_warning(plan: MakePlan) -> None:
    (line,) = plan({"rllm.workflow.name": "any_roles", "rllm.rollout.n": 1}).warnings
    check_values(line, "rllm.rollout.n=1", "estimator grpo", "unless", "role")


@pytest.mark.parametrize("grouping", ["task", "episode"])
@pytest.mark.parametrize("key", ["estimator_map", "loss_map"])
def test_choices_for_mixed_roles_cause_a_warning(plan: MakePlan, grouping: str, key: str) -> None:
    settings = {"rllm.workflow.name": "any_roles", "rllm.transform.grouping": grouping}
    mapping = {"solver": "reinforce", "all_groups": "reinforce", "judge": "reinforce"}
    (line,) = plan(settings | {f"rllm.algorithm.{key}": mapping}).warnings
    check_values(line, f"rllm.algorithm.{key}", "solver, judge", f"grouping {grouping}", "role all_groups")


@pytest.mark.parametrize("grouping", ["task_role", "role", "own_way"])
def test_choices_for_separate_roles_cause_no_warning(plan: MakePlan, grouping: str) -> None:
    settings = {"rllm.workflow.name": "any_roles", "rllm.transform.grouping": grouping}
    assert plan(settings | {"rllm.algorithm.estimator_map": {"solver": "reinforce"}}).warnings == ()


@pytest.mark.parametrize("grouping", ["task", "episode"])
def test_mixed_roles_use_the_common_estimator_and_loss(plan: MakePlan, grouping: str) -> None:
    settings = {"rllm.workflow.name": "any_roles", "rllm.transform.grouping": grouping}
    choice = {"all_groups": {"name": "rloo", "loss_fn": "reinforce"}}
    made = plan(settings | {"rllm.algorithm.estimator_map": choice})
    assert made.warnings == ()
    assert made.estimators.get("all_groups").plugin.name == "rloo"
    assert made.losses.get("all_groups").plugin.name == "reinforce"


KEY = "rllm.rollout.engine"


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


def test_run_uses_the_backends_engine_by_default(plan: MakePlan) -> None:
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


def test_saved_engine_is_dropped_if_backend_hosts_none(registry: Registry) -> None:
    layers = [layer_from_keys({KEY: "fast", "rllm.backend": "probe"}, "config.yaml of the run", Tier.SAVED)]
    made = make_plan(compose(registry, layers), registry)
    assert made.engine is None
    assert made.config.rllm.rollout.engine is None
    assert any("rllm.rollout.engine" in line and "fast" in line for line in made.warnings)


def test_missing_package_of_engine_stops_before_start(plan: MakePlan) -> None:
    made = plan({"rllm.backend": "host", KEY: "fast"})
    with expect_error(PluginError, "made-up", "pip install fast"):
        check_to_train(made, [Task(id="a"), Task(id="b")], [])
