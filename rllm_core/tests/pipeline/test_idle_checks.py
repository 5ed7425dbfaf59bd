"""Settings that change nothing in a run are refused, or warned of where they change something in some run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from expecting import check_values, expect_error
from pydantic import Field

from rllm.config.compose import compose
from rllm.config.layers import COMMAND_LINE, Tier, layer_from_keys
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm.planning.preflight import check_to_train
from rllm_core.contracts import Backend, Capabilities, Environment, Params
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError
from rllm_core.notices import forget_warnings
from rllm_core.plugins.registry import Registry

MakePlan = Callable[..., RunPlan]
TASKS = [Task(id=f"t{number}") for number in range(4)]


class DealtSection(Params):
    minibatches: int = Field(1, description="Nothing.")


class Sections(Params):
    dealt: DealtSection = Field(default_factory=DealtSection, description="Nothing.")


class World(Environment):
    tasks = reset = step = None  # type: ignore[assignment]


@pytest.fixture
def make(plan: MakePlan, offer: Any) -> MakePlan:
    """Plans with an environment, and a backend that deals a batch to minibatches."""
    offer("environment", "world", World)
    offer(
        "backend",
        "deals",
        Backend,
        params=Sections,
        minibatches_key="dealt.minibatches",
        training_keys=lambda: frozenset({"dealt.*"}),
        capabilities=Capabilities(custom_losses=True, columns=frozenset({"old_logprobs"})),
    )
    return lambda settings: plan({"rllm.backend": "deals", "rllm.env.name": "world"} | settings)


@pytest.fixture
def typed(make: MakePlan, registry: Registry) -> MakePlan:
    """The plan of keys that are typed on the command line."""

    def planned(settings: Mapping[str, Any]) -> RunPlan:
        chosen = {"rllm.backend": "deals", "rllm.env.name": "world", **settings}
        return make_plan(compose(registry, [layer_from_keys(chosen, COMMAND_LINE, Tier.COMMAND_LINE)]), registry)

    return planned


@pytest.fixture
def read_warnings(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """What is said of a plan with these tasks before it starts."""

    def lines(plan: RunPlan, *tasks: Any) -> list[str]:
        forget_warnings()
        check_to_train(plan, *tasks)
        return capsys.readouterr().err.splitlines()

    return lines


def test_keeping_reasoning_has_no_effect_in_one_turn(make: MakePlan) -> None:
    key, turns, workflow = "rllm.accumulate_reasoning", "rllm.agent.max_steps", "rllm.workflow.name"
    with expect_error(ConfigError, "unused-key", key, "multi_turn_workflow"):
        make({key: True, workflow: "single_turn_workflow"})
    with expect_error(ConfigError, "unused-key", key, turns, "1"):
        make({key: True, turns: 1, workflow: "multi_turn_workflow"})
    assert make({key: True, turns: 2, workflow: "multi_turn_workflow"}).config.rllm.accumulate_reasoning
    assert make({key: False, turns: 1, workflow: "multi_turn_workflow"}).warnings == ()


def test_rejection_that_keeps_every_group_is_said(make: MakePlan) -> None:
    none = {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": "none"}
    (line,) = make(none).warnings
    check_values(line, "`rllm.rejection_sample.enable` is true (from my.yaml)", "rllm.rejection_sample.mode is none")
    assert make(none | {"rllm.rejection_sample.multiplier": 2}).warnings == ()  # more tasks are drawn
    assert make(none | {"rllm.rejection_sample.mode": "group"}).warnings == ()


def test_filtering_that_masks_nothing_is_refused(make: MakePlan) -> None:
    section = "rllm.compact_filtering"
    names = ("max_prompt_length_exceeded", "max_response_length_exceeded", "max_turns_exceeded", "timeout", "error")
    nothing = {f"{section}.enable": True} | {f"{section}.mask_{name}": False for name in names}
    with pytest.raises(ConfigError, match=rf"`{section}.enable` is true .* every {section}.mask_\* is false"):
        make(nothing)
    assert make(nothing | {f"{section}.mask_error": True}).warnings == ()


@pytest.mark.parametrize(("save_freq", "lines"), [(-1, 1), (0, 1), (5, 0)])
def test_keeping_checkpoints_that_are_not_made_is_said(make: MakePlan, save_freq: int, lines: int) -> None:
    key = "rllm.trainer.keep_checkpoints"
    warnings = make({key: 5, "rllm.trainer.save_freq": save_freq}).warnings
    assert [line.startswith(f"`{key}` is 5 (from my.yaml)") for line in warnings] == [True] * lines
    assert make({"rllm.trainer.save_freq": save_freq}).warnings == ()


def test_typed_training_keys_are_errors_without_training(typed: MakePlan) -> None:
    validates = {"rllm.trainer.val_only": True}
    of_core = {"rllm.rollout.n": 4, "rllm.algorithm.adv_estimator": "rloo", "data.train_batch_size": 9}
    of_backend = {"dealt.minibatches": 2}
    for key, value in (of_core | of_backend).items():
        with expect_error(ConfigError, "unused-key", key, "rllm.trainer.val_only"):
            typed(validates | {key: value})
        (line,) = typed(validates | {key: value, "rllm.unused_keys": "warn"}).warnings
        assert line.startswith(f"`{key}` is ")
    for_validation = {"rllm.rollout.n_val": 3, "sampling.val.temperature": 0.5, "rllm.trainer.seed": 4}
    assert typed(validates | for_validation).warnings == ()


def test_training_keys_of_files_warn_without_training(make: MakePlan) -> None:
    of_training = {"rllm.rollout.n": 4, "data.train_batch_size": 9, "dealt.minibatches": 2}
    (line,) = make({"rllm.trainer.val_only": True} | of_training).warnings
    assert "nothing is trained: data.train_batch_size, dealt.minibatches, rllm.rollout.n have no effect" in line


def test_batch_larger_than_the_tasks_is_reported(make: MakePlan, read_warnings: Any) -> None:
    (line,) = read_warnings(make({"data.train_batch_size": 5}), TASKS, TASKS)
    check_values(line, "`data.train_batch_size` is 5 (from my.yaml)", "4 training tasks")
    assert read_warnings(make({"data.train_batch_size": 4}), TASKS, TASKS) == []
    assert read_warnings(make({}), TASKS, TASKS) == []  # 64 is the default
    assert read_warnings(make({"data.train_batch_size": 5}), None, None) == []  # the tasks are unknown


@pytest.mark.parametrize(("tasks", "n", "lines"), [(TASKS, 2, 0), (TASKS[:2], 2, 1), (TASKS, 1, 1), (None, 1, 0)])
def test_more_minibatches_than_rows_are_said(make: Any, read_warnings: Any, tasks: Any, n: int, lines: int) -> None:
    plan = make({"dealt.minibatches": 8, "rllm.rollout.n": n, "rllm.algorithm.adv_estimator": "reinforce"})
    found = read_warnings(plan, tasks, TASKS)
    assert len(found) == lines
    assert all("minibatches" in line for line in found)


def test_a_run_without_training_tasks_is_refused(make: MakePlan) -> None:
    with expect_error(ConfigError, "no-training-tasks"):
        check_to_train(make({}), [], TASKS)
    check_to_train(make({"rllm.trainer.val_only": True}), [], TASKS)
