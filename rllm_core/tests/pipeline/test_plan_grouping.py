"""What is said before a run starts about groups that compare nothing, and about roles that are not told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from expecting import check_values

from rllm.planning.plan import RunPlan

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
def test_groups_that_may_be_larger_are_not_warned_of(plan: MakePlan, settings: dict[str, Any]) -> None:
    assert plan(settings).warnings == ()


def test_workflow_with_repeated_roles_gives_a_warning(plan: MakePlan) -> None:
    (line,) = plan({"rllm.workflow.name": "any_roles", "rllm.rollout.n": 1}).warnings
    check_values(line, "rllm.rollout.n=1", "estimator grpo", "unless", "role")


@pytest.mark.parametrize("grouping", ["task", "episode"])
@pytest.mark.parametrize("key", ["estimator_map", "loss_map"])
def test_choices_for_roles_that_the_grouping_mixes_are_warned_of(plan: MakePlan, grouping: str, key: str) -> None:
    settings = {"rllm.workflow.name": "any_roles", "rllm.transform.grouping": grouping}
    mapping = {"solver": "reinforce", "all_groups": "reinforce", "judge": "reinforce"}
    (line,) = plan(settings | {f"rllm.algorithm.{key}": mapping}).warnings
    check_values(line, f"rllm.algorithm.{key}", "solver, judge", f"grouping {grouping}", "role all_groups")


@pytest.mark.parametrize("grouping", ["task_role", "role", "own_way"])
def test_choices_for_roles_that_are_kept_apart_are_not(plan: MakePlan, grouping: str) -> None:
    settings = {"rllm.workflow.name": "any_roles", "rllm.transform.grouping": grouping}
    assert plan(settings | {"rllm.algorithm.estimator_map": {"solver": "reinforce"}}).warnings == ()


@pytest.mark.parametrize("grouping", ["task", "episode"])
def test_mixed_roles_have_the_estimator_and_loss_chosen_for_all_groups(plan: MakePlan, grouping: str) -> None:
    settings = {"rllm.workflow.name": "any_roles", "rllm.transform.grouping": grouping}
    choice = {"all_groups": {"name": "rloo", "loss_fn": "reinforce"}}
    made = plan(settings | {"rllm.algorithm.estimator_map": choice})
    assert made.warnings == ()
    assert made.estimators.get("all_groups").plugin.name == "rloo"
    assert made.losses.get("all_groups").plugin.name == "reinforce"
