"""Environments that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from rllm_core.contracts import Environment, EnvironmentPlugin, NoParams, Outcome, Split
from rllm_core.data.types import Task
from rllm_plugin_kit import EnvironmentContract

from .conftest import vary


class Echo(Environment):
    """Repeats what is said, three times."""

    def __init__(self, params: NoParams) -> None:
        self.steps = 0

    @classmethod
    def tasks(cls, split: Split, params: NoParams) -> Sequence[Task]:
        return [Task(id=f"{split}-{number}", data={"words": ["say", str(number)]}) for number in range(5)]

    def reset(self, task: Mapping[str, Any]) -> Any:
        self.words = list(task["words"])
        return " ".join(self.words)

    def step(self, action: str) -> Any:
        self.steps += 1
        return Outcome(observation=action, reward=float(action == self.words[-1]), done=self.steps == 3)


class InMessages(Echo):
    async def reset(self, task: Mapping[str, Any]) -> Any:
        return [{"role": "system", "content": "Echo."}, {"role": "user", "content": super().reset(task)}]

    async def step(self, action: str) -> Any:
        return super().step(action)


NeverEnds = vary(Echo, step=lambda _, action: Outcome(observation="again"))
NAN = Outcome(reward=float("nan"), done=True)


def of_tasks(make: Callable[[], Any]) -> type[Echo]:
    """Return an environment of these tasks."""
    return vary(Echo, tasks=classmethod(lambda cls, split, params: make()))


class ShareState(Echo):
    seen: ClassVar[list[str]] = []

    def reset(self, task: Mapping[str, Any]) -> Any:
        self.seen.clear()
        return super().reset(task)

    def step(self, action: str) -> Any:
        self.seen.append(action)
        return Outcome(observation=str(len(self.seen)), done=len(self.seen) > 4)


class RemembersOtherEpisodes(Echo):
    episodes: ClassVar[list[int]] = []

    def reset(self, task: Mapping[str, Any]) -> Any:
        self.episodes.append(1)
        return f"{super().reset(task)}, game {len(self.episodes)}"


class NoValidation(Echo):
    @classmethod
    def tasks(cls, split: Split, params: NoParams) -> Sequence[Task]:
        return {"train": super().tasks(split, params)}[str(split)]


class TakesWordsAway(Echo):
    def reset(self, task: Mapping[str, Any]) -> Any:
        self.words = task["words"]
        return self.words.pop()


def record(environment: type[Echo]) -> EnvironmentPlugin[NoParams]:
    return EnvironmentPlugin(name="mine", summary="Mine.", params=NoParams, load=lambda: environment, blocking=False)


@pytest.mark.parametrize("environment", [Echo, InMessages])
def test_a_good_environment_has_no_complaints(complaints: Any, environment: type[Echo]) -> None:
    assert complaints(EnvironmentContract, record(environment), actions=("1", "2"), max_steps=3) == {}


TASKS = "tasks_are_the_same_every_time"


@pytest.mark.parametrize(
    ("environment", "test", "told"),
    [
        (vary(Echo, step=lambda _, action: Outcome(reward=int(action))), "any_action_gets_an_outcome", "ValueError"),
        (NeverEnds, "episode_ends_within_max_steps", "has not ended"),
        (ShareState, "episodes_do_not_share_state", "episode's state"),
        (RemembersOtherEpisodes, "same_actions_give_same_outcomes", "`deterministic = False`"),
        (of_tasks(lambda: [Task(id="a", data={"words": [str(random.random())]})]), TASKS, "Make tasks a"),
        (of_tasks(lambda: [Task(id="task", data={"words": ["a"]})] * 2), "tasks_have_different_ids", "'task'"),
        (of_tasks(list), TASKS, "has no task"),
        (NoValidation, TASKS, "`tasks(cls, split, params)`"),
        (of_tasks(lambda: [{"id": "task"}]), TASKS, "rllm_core.data.types.Task"),
        (of_tasks(lambda: [Task(id="task", data={"words": ("a",)})]), "task_data_is_json", "Use lists instead"),
        (of_tasks(lambda: [Task(id="task", data={"words": ["a"], "x": {1}})]), "task_data_is_json", "Task.data"),
        (vary(Echo, step=lambda *_: NAN), "any_action_gets_an_outcome", "gave reward the"),
        (vary(Echo, reset=lambda *_: None), "any_action_gets_an_outcome", "shows None after"),
        (vary(Echo, step=lambda *_: ("", 1.0, True)), "any_action_gets_an_outcome", "contracts.environment.Outcome"),
        (TakesWordsAway, "it_does_not_change_tasks", "'train-0'"),
        (vary(Echo, close=lambda self: self.words.clear()), "close_at_any_time_works", "AttributeError"),
    ],
)
def test_contract_reports_the_mistake(complaint: Any, environment: type[Echo], test: str, told: str) -> None:
    assert told in complaint(EnvironmentContract, record(environment), test)


@pytest.mark.parametrize(
    ("environment", "attributes"),
    [(NeverEnds, {"max_steps": None}), (RemembersOtherEpisodes, {"deterministic": False})],
)
def test_declared_exceptions_are_accepted(complaints: Any, environment: type[Echo], attributes: dict[str, Any]) -> None:
    assert complaints(EnvironmentContract, record(environment), **attributes) == {}


SCHEMA = {"type": "function", "function": {"name": "double"}}


class WithTools(Echo):
    def tools(self, task: Mapping[str, Any]) -> Any:
        return [self.last, (SCHEMA, lambda number: 2 * number)]

    def last(self) -> str:
        return str(self.words[-1])


def test_tools_are_functions_and_pairs(complaints: Any) -> None:
    assert complaints(EnvironmentContract, record(WithTools)) == {}


@pytest.mark.parametrize("tools", [[SCHEMA], None])
def test_invalid_tools_are_reported(complaint: Any, tools: Any) -> None:
    offers = vary(Echo, tools=lambda self, task: tools)
    assert "`tools`" in complaint(EnvironmentContract, record(offers), "tools_are_functions")


def _no_tasks() -> Any:
    raise ValueError("it has no tasks")


def test_environment_without_tasks_gets_the_tests_tasks(complaints: Any, complaint: Any) -> None:
    made = record(of_tasks(_no_tasks))
    assert complaints(EnvironmentContract, made, dataset=[{"words": ["say", "it"]}]) == {}
    told = complaint(EnvironmentContract, made, "episode_ends_within_max_steps", dataset=[{"question": "2+2?"}])
    assert "reset failed" in told
