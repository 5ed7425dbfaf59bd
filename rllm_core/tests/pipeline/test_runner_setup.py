"""The tasks an environment gives, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from rllm_core.contracts.environment import Environment, EnvironmentPlugin, Split
from rllm_core.contracts.plugin import NoParams
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plan import RunPlan
from rllm_core.plugins.registry import Registry
from rllm_core.runner_setup import tasks_of
from rllm_core.types import Task


@pytest.fixture
def plan_with(plan: Callable[..., RunPlan], registry: Registry) -> Callable[..., RunPlan]:
    """The plan of a run with an environment whose tasks come from this function of the split."""

    def make(tasks: Callable[[Split], Any]) -> RunPlan:
        class Mine(Environment):
            @classmethod
            def tasks(cls, split: Split, params: Any) -> Sequence[Task]:
                given: Sequence[Task] = tasks(split)
                return given

            def reset(self, task: Any) -> str:
                raise NotImplementedError

            def step(self, action: str) -> Any:
                raise NotImplementedError

        registry.add(EnvironmentPlugin(name="mine", summary="For tests.", params=NoParams, load=lambda: Mine))
        return plan({"rllm.env.name": "mine"})

    return make


def test_the_tasks_of_a_split_are_a_list(plan_with: Callable[..., RunPlan]) -> None:
    def tasks(split: Split) -> Iterator[Task]:
        return (Task(id=f"{split}-{index}") for index in range(3))

    made = plan_with(tasks)
    assert [task.id for task in tasks_of(made, "train")] == ["train-0", "train-1", "train-2"]
    assert [task.id for task in tasks_of(made, "val")] == ["val-0", "val-1", "val-2"]


def test_a_run_without_an_environment_is_told_to_name_one(plan: Callable[..., RunPlan]) -> None:
    with pytest.raises(ConfigError, match="No environment is named"):
        tasks_of(plan(), "train")


@pytest.mark.parametrize("stranger", [{"id": "a"}, "a", None])
def test_what_is_no_task_is_refused_and_shown(plan_with: Callable[..., RunPlan], stranger: Any) -> None:
    with pytest.raises(PluginError) as caught:
        tasks_of(plan_with(lambda split: [Task(id="good"), stranger]), "train")
    assert caught.value.message == f"Environment 'mine' gave {stranger!r} as a train task."
    assert caught.value.hint == "Return Task records."


def _fail(split: Split) -> Sequence[Task]:
    raise FileNotFoundError(f"{split}.jsonl")


def _fail_late(split: Split) -> Iterator[Task]:
    yield Task(id="a")
    raise FileNotFoundError(f"{split}.jsonl")


@pytest.mark.parametrize("tasks", [_fail, _fail_late])
def test_tasks_that_cannot_be_given_are_an_error_that_names_environment_and_split(
    plan_with: Callable[..., RunPlan], tasks: Any
) -> None:
    with pytest.raises(PluginError) as caught:
        tasks_of(plan_with(tasks), "val")
    assert caught.value.message == "Environment 'mine' could not give its val tasks: FileNotFoundError: val.jsonl."
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_no_list_of_tasks_at_all_is_an_error_that_names_the_environment(plan_with: Callable[..., RunPlan]) -> None:
    with pytest.raises(PluginError, match="Environment 'mine' could not give its train tasks: TypeError"):
        tasks_of(plan_with(lambda split: None), "train")


def test_two_tasks_of_one_id_are_refused(plan_with: Callable[..., RunPlan]) -> None:
    with pytest.raises(ConfigError) as caught:
        tasks_of(plan_with(lambda split: [Task(id="a"), Task(id="b"), Task(id="a")]), "train")
    assert caught.value.message == "Environment 'mine' has two train tasks with id 'a'."


def test_an_environment_that_cannot_be_loaded_is_named(plan: Callable[..., RunPlan], registry: Registry) -> None:
    def fail() -> Any:
        raise ImportError("No module named 'pygame'")

    registry.add(EnvironmentPlugin(name="mine", summary="For tests.", params=NoParams, load=fail))
    with pytest.raises(PluginError) as caught:
        tasks_of(plan({"rllm.env.name": "mine"}), "train")
    assert caught.value.message == (
        "environment in-process/mine cannot be loaded: ImportError: No module named 'pygame'."
    )
