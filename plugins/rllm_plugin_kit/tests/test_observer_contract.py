"""Observers that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import pytest

from rllm_core.contracts import NoParams, Observer, ObserverPlugin, TrainStep
from rllm_plugin_kit import ObserverContract

from .conftest import later, vary


class Curious(Observer):
    """Looks at everything, and vetoes every other validation."""

    def __init__(self, params: NoParams) -> None:
        self.seen: list[object] = []

    def on_batch_start(self, step: TrainStep) -> None:
        self.seen.append((step.global_step, len(step.tasks)))

    def on_batch_end(self, step: TrainStep) -> None:
        self.seen.append(sum(step.metrics.values()))

    def on_validation_start(self, global_step: int) -> bool:
        self.seen.append(global_step)
        return global_step % 4 == 0


class NeedsAnUpdateInEveryStep(Curious):
    updated = -1

    def on_policy_updated(self, step: TrainStep) -> None:
        self.updated = step.global_step

    def on_batch_end(self, step: TrainStep) -> None:
        assert self.updated == step.global_step


class VetoesOnceInAProcess(Curious):
    vetoes: ClassVar[list[int]] = []

    def on_validation_start(self, global_step: int) -> bool:
        self.vetoes.append(global_step)
        return len(self.vetoes) > 1


class ScalesRewards(Curious):
    def on_policy_updated(self, step: TrainStep) -> None:
        for group in step.trajectory_groups:
            for trajectory in group.trajectories:
                trajectory.reward = 2 * (trajectory.reward or 0.0) + 1


def plugin(make: Any) -> ObserverPlugin[Any]:
    return ObserverPlugin(name="mine", summary="For tests.", params=NoParams, load=lambda: make)


def test_a_good_observer_has_no_complaints(complaints: Any) -> None:
    assert complaints(ObserverContract, plugin(Curious)) == {}


OBSERVED, SAME_STEPS = "any_run_can_be_observed", "it_does_not_change_steps"


@pytest.mark.parametrize(
    ("observer", "test", "said"),
    [
        (vary(Curious, on_batch_finished=lambda self, step: None), "methods_are_known_events", "on_batch_finished"),
        (vary(Curious, on_batch_end=later(lambda *_: None)), "methods_are_known_events", "on_batch_end"),
        # It counts from the first step, as if no run were resumed.
        (vary(Curious, on_train_start=lambda _, total, first: [0][first]), OBSERVED, "on_train_start"),
        (vary(Curious, on_train_start=lambda _, total, first: 1 / (total - first)), OBSERVED, "on_train_start"),
        (vary(Curious, on_batch_end=lambda _, step: step.filled_batch.n_rows), OBSERVED, "on_batch_end"),
        (NeedsAnUpdateInEveryStep, OBSERVED, "on_batch_end"),
        (vary(Curious, on_validation_start=lambda *_: None), "veto_is_a_bool", "on_validation_start"),
        (VetoesOnceInAProcess, "same_run_gets_same_vetoes", "votes differently in"),
        (vary(Curious, on_batch_end=lambda _, step: step.metrics.update(mine=1.0)), SAME_STEPS, "on_batch_end"),
        (ScalesRewards, SAME_STEPS, "on_policy_updated"),
        (vary(Curious, on_validation_end=lambda _, step, metrics: metrics.clear()), SAME_STEPS, "on_validation_end"),
        (
            vary(Curious, on_train_start=lambda *_: random.random()),
            "process_wide_state_is_unchanged",
            "leaves Python's random",
        ),
        (lambda params: object(), OBSERVED, "has not all"),
    ],
)
def test_contract_reports_the_mistake(observer: Any, test: str, said: str, complaint: Any) -> None:
    assert said in complaint(ObserverContract, plugin(observer), test)
