"""Environments that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from rllm_core.contracts.environment import Environment, EnvironmentPlugin, Outcome, Split
from rllm_core.contracts.plugin import NoParams
from rllm_core.data.types import Task
from rllm_plugin_kit import EnvironmentContract


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


class RaisesOnJunk(Echo):
    def step(self, action: str) -> Any:
        return Outcome(reward=float(int(action) > 0), done=True)


class NeverEnds(Echo):
    def step(self, action: str) -> Any:
        return Outcome(observation="again")


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


class DrawsTasks(Echo):
    @classmethod
    def tasks(cls, split: Split, params: NoParams) -> Sequence[Task]:
        return [Task(id=str(number), data={"words": [str(random.random())]}) for number in range(5)]


class SameIds(Echo):
    @classmethod
    def tasks(cls, split: Split, params: NoParams) -> Sequence[Task]:
        return [Task(id="task", data={"words": ["a"]})] * 2


class TuplesInData(Echo):
    @classmethod
    def tasks(cls, split: Split, params: NoParams) -> Sequence[Task]:
        return [Task(id="task", data={"words": ("a", "b")})]


class ObjectsInData(Echo):
    @classmethod
    def tasks(cls, split: Split, params: NoParams) -> Sequence[Task]:
        return [Task(id="task", data={"words": ["a"], "set": {1, 2}})]


class NoTasks(Echo):
    @classmethod
    def tasks(cls, split: Split, params: NoParams) -> Sequence[Task]:
        return []


class NoValidation(Echo):
    @classmethod
    def tasks(cls, split: Split, params: NoParams) -> Sequence[Task]:
        return {"train": super().tasks(split, params)}[str(split)]


class DictionariesForTasks(Echo):
    @classmethod
    def tasks(cls, split: Split, params: NoParams) -> Any:
        return [{"id": "task"}]


class NotANumber(Echo):
    def step(self, action: str) -> Any:
        return Outcome(reward=float("nan"), done=True)


class ShowsNothing(Echo):
    def reset(self, task: Mapping[str, Any]) -> Any:
        return None


class ReturnsATuple(Echo):
    def step(self, action: str) -> Any:
        return action, 1.0, True


class TakesWordsAway(Echo):
    def reset(self, task: Mapping[str, Any]) -> Any:
        self.words = task["words"]
        return self.words.pop()


class ClosesWhatIsNotOpen(Echo):
    def close(self) -> None:
        assert self.words


def record(environment: type[Echo]) -> EnvironmentPlugin[NoParams]:
    return EnvironmentPlugin(name="mine", summary="Mine.", params=NoParams, load=lambda: environment, blocking=False)


@pytest.mark.parametrize("environment", [Echo, InMessages])
def test_a_good_environment_has_no_complaints(complaints: Any, environment: type[Echo]) -> None:
    assert complaints(EnvironmentContract, record(environment), actions=("1", "2"), max_steps=3) == {}


TASKS = "tasks_are_the_same_every_time"


@pytest.mark.parametrize(
    ("environment", "test", "told"),
    [
        (RaisesOnJunk, "any_action_gets_an_outcome", "ValueError"),
        (NeverEnds, "episode_ends_within_max_steps", "has not ended"),
        (ShareState, "episodes_do_not_share_state", "episode's state"),
        (RemembersOtherEpisodes, "same_actions_give_same_outcomes", "`deterministic = False`"),
        (DrawsTasks, TASKS, "Make tasks a"),
        (SameIds, "tasks_have_different_ids", "'task'"),
        (NoTasks, TASKS, "has no task"),
        (NoValidation, TASKS, "`tasks(cls, split, params)`"),
        (DictionariesForTasks, TASKS, "rllm_core.data.types.Task"),
        (TuplesInData, "task_data_is_json", "Use lists instead"),
        (ObjectsInData, "task_data_is_json", "Task.data"),
        (NotANumber, "any_action_gets_an_outcome", "gave reward the"),
        (ShowsNothing, "any_action_gets_an_outcome", "shows None after"),
        (ReturnsATuple, "any_action_gets_an_outcome", "rllm_core.contracts.environment.Outcome"),
        (TakesWordsAway, "it_does_not_change_tasks", "'train-0'"),
        (ClosesWhatIsNotOpen, "close_at_any_time_works", "AttributeError"),
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


class OffersSchemasAlone(Echo):
    def tools(self, task: Mapping[str, Any]) -> Any:
        return [SCHEMA]


class OffersNothing(Echo):
    def tools(self, task: Mapping[str, Any]) -> Any:
        return None


def test_tools_are_functions_and_pairs(complaints: Any) -> None:
    assert complaints(EnvironmentContract, record(WithTools)) == {}


@pytest.mark.parametrize("environment", [OffersSchemasAlone, OffersNothing])
def test_invalid_tools_are_reported(complaint: Any, environment: type[Echo]) -> None:
    assert "`tools`" in complaint(EnvironmentContract, record(environment), "tools_are_functions")


class PlaysADataset(Echo):
    @classmethod
    def tasks(cls, split: Split, params: NoParams) -> Sequence[Task]:
        raise ValueError("it has no tasks")


def test_environment_without_tasks_gets_the_tests_tasks(complaints: Any) -> None:
    assert complaints(EnvironmentContract, record(PlaysADataset), dataset=[{"words": ["say", "it"]}]) == {}


def test_error_on_the_tests_tasks_is_reported(complaint: Any) -> None:
    told = complaint(
        EnvironmentContract, record(PlaysADataset), "episode_ends_within_max_steps", dataset=[{"question": "2+2?"}]
    )
    assert "reset failed" in told
