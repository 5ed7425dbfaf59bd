"""Samplers that are wrong in one way each, and the messages of the contract."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.sampler import Sampler, SamplerPlugin, SamplerSetup, TaskResult
from rllm_plugin_kit import SamplerContract


class Counting(Sampler):
    """Goes over the tasks in order, one further after each solved task."""

    def __init__(self, params: NoParams, setup: SamplerSetup) -> None:
        self.setup = setup
        self.first = 0

    def draw(self, batch: int) -> Sequence[int]:
        tasks = len(self.setup.tasks)
        return [(self.first + batch + place) % tasks for place in range(self.setup.batch_size)]

    def observe(self, results: Sequence[TaskResult]) -> None:
        self.first += sum(result.pass_rate == 1 for result in results)

    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = state["first"]


class Repeats(Counting):
    def draw(self, batch: int) -> Sequence[int]:
        return [0] * self.setup.batch_size


class DrawsTooMany(Counting):
    def draw(self, batch: int) -> Sequence[int]:
        return range(len(self.setup.tasks))


class DrawsNothing(Counting):
    def draw(self, batch: int) -> Sequence[int]:
        return []


class LeavesTheTasks(Counting):
    def draw(self, batch: int) -> Sequence[int]:
        return [len(self.setup.tasks)]


class Forgets(Counting):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class HasNoState(Counting):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class SavesASet(Counting):
    def state_dict(self) -> dict[str, Any]:
        return {"first": {self.first}}


class IsShared(Counting):
    seen = 0

    def draw(self, batch: int) -> Sequence[int]:
        IsShared.seen += 1
        return [IsShared.seen % len(self.setup.tasks)]


class UsesSharedNumbers(Counting):
    def draw(self, batch: int) -> Sequence[int]:
        return [random.randrange(len(self.setup.tasks))]


class NeedsResults(Counting):
    def observe(self, results: Sequence[TaskResult]) -> None:
        self.first = results[0].position


class ReportsText(Counting):
    def metrics(self) -> Any:
        return {"level": "high"}


class NoSampler:
    def __init__(self, params: NoParams, setup: SamplerSetup) -> None:
        pass


def record(made: Any) -> SamplerPlugin[NoParams]:
    return SamplerPlugin(name="mine", summary="Mine.", params=NoParams, load=lambda: made)


def test_a_good_sampler_has_no_complaints(complaints: Any) -> None:
    assert complaints(SamplerContract, record(Counting)) == {}


def test_hook_example_keeps_the_contract(complaints: Any, example: Any) -> None:
    assert complaints(SamplerContract, example("sampler")) == {}


USABLE = "batch_has_known_tasks_without_duplicates"
RESUMED = "a_resumed_run_continues_exactly"


@pytest.mark.parametrize(
    ("made", "test", "told"),
    [
        (Repeats, USABLE, "a task twice"),
        (DrawsTooMany, USABLE, "`setup.batch_size`"),
        (DrawsNothing, USABLE, "drew 0 tasks"),
        (LeavesTheTasks, USABLE, "drew position 24"),
        (Forgets, RESUMED, "a different state"),
        (HasNoState, RESUMED, "draws other tasks"),
        (SavesASet, RESUMED, "not JSON"),
        (IsShared, "same_results_give_same_tasks", "never in its class"),
        (UsesSharedNumbers, "global_random_state_is_not_used", "default_rng"),
        (NeedsResults, "step_without_results_works", "IndexError"),
        (ReportsText, "metrics_are_numbers", "level='high'"),
        (NoSampler, USABLE, "rllm_core.contracts.Sampler"),
    ],
)
def test_contract_reports_the_mistake(complaint: Any, made: Any, test: str, told: str) -> None:
    assert told in complaint(SamplerContract, record(made), test)
