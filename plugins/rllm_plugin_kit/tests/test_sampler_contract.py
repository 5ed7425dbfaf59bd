"""Samplers that are wrong in one way each, and the messages of the contract."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rllm_core.contracts import NoParams, Sampler, SamplerPlugin, SamplerSetup, TaskResult
from rllm_plugin_kit import SamplerContract

from .conftest import vary


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


def drawing(draw: Callable[[Counting], Sequence[int]]) -> type[Counting]:
    """Return a sampler that draws these positions."""
    return vary(Counting, draw=lambda self, batch: draw(self))


NUMBERS = itertools.count()


def record(made: Any) -> SamplerPlugin[NoParams]:
    return SamplerPlugin(name="mine", summary="Mine.", params=NoParams, load=lambda: made)


def test_a_good_sampler_has_no_complaints(complaints: Any) -> None:
    assert complaints(SamplerContract, record(Counting)) == {}


USABLE = "batch_has_known_tasks_without_duplicates"
RESUMED = "a_resumed_run_continues_exactly"


@pytest.mark.parametrize(
    ("made", "test", "told"),
    [
        (drawing(lambda self: [0] * self.setup.batch_size), USABLE, "a task twice"),
        (drawing(lambda self: range(len(self.setup.tasks))), USABLE, "`setup.batch_size`"),
        (drawing(lambda self: []), USABLE, "drew 0 tasks"),
        (drawing(lambda self: [len(self.setup.tasks)]), USABLE, "drew position 24"),
        (vary(Counting, load_state_dict=lambda self, state: None), RESUMED, "a different state"),
        (
            vary(Counting, state_dict=lambda self: {}, load_state_dict=lambda self, state: None),
            RESUMED,
            "draws other tasks",
        ),
        (vary(Counting, state_dict=lambda self: {"first": {self.first}}), RESUMED, "not JSON"),
        (
            drawing(lambda self: [next(NUMBERS) % len(self.setup.tasks)]),
            "same_results_give_same_tasks",
            "never in its class",
        ),
        (
            drawing(lambda self: [random.randrange(len(self.setup.tasks))]),
            "global_random_state_is_not_used",
            "default_rng",
        ),
        (
            vary(Counting, observe=lambda self, results: results[0].position),
            "step_without_results_works",
            "IndexError",
        ),
        (vary(Counting, metrics=lambda self: {"level": "high"}), "metrics_are_numbers", "level='high'"),
        (lambda params, setup: object(), USABLE, "rllm_core.contracts.Sampler"),
    ],
)
def test_contract_reports_the_mistake(complaint: Any, made: Any, test: str, told: str) -> None:
    assert told in complaint(SamplerContract, record(made), test)
