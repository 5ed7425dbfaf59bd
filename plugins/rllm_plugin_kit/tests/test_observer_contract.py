"""Observers that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import pytest

from rllm_core.contracts import NoParams, Observer, ObserverPlugin, TrainStep
from rllm_plugin_kit import ObserverContract


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


class Misspelt(Curious):
    def on_batch_finished(self, step: TrainStep) -> None:
        pass


class Asynchronous(Curious):
    async def on_batch_end(self, step: TrainStep) -> None:  # type: ignore[override]
        pass


class NeedsAStart(Curious):
    """Counts from the first step, as if no run were resumed."""

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        assert first_step == 0


class DividesBySteps(Curious):
    def on_train_start(self, total_steps: int, first_step: int) -> None:
        self.share = 1 / (total_steps - first_step)


class NeedsABatch(Curious):
    def on_batch_end(self, step: TrainStep) -> None:
        assert step.filled_batch.n_rows


class NeedsAnUpdateInEveryStep(Curious):
    updated = -1

    def on_policy_updated(self, step: TrainStep) -> None:
        self.updated = step.global_step

    def on_batch_end(self, step: TrainStep) -> None:
        assert self.updated == step.global_step


class ForgetsToReturn(Curious):
    def on_validation_start(self, global_step: int) -> bool:  # type: ignore[return]
        self.seen.append(global_step)


class VetoesOnceInAProcess(Curious):
    vetoes: ClassVar[list[int]] = []

    def on_validation_start(self, global_step: int) -> bool:
        self.vetoes.append(global_step)
        return len(self.vetoes) > 1


class AddsAMetric(Curious):
    def on_batch_end(self, step: TrainStep) -> None:
        step.metrics["mine"] = 1.0


class ScalesRewards(Curious):
    def on_policy_updated(self, step: TrainStep) -> None:
        for group in step.trajectory_groups:
            for trajectory in group.trajectories:
                trajectory.reward = 2 * (trajectory.reward or 0.0) + 1


class AddsAValidationMetric(Curious):
    def on_validation_end(self, global_step: int, metrics: dict[str, float]) -> None:
        metrics["val/mine"] = 1.0


class Draws(Curious):
    def on_train_start(self, total_steps: int, first_step: int) -> None:
        random.random()


def plugin(make: Any) -> ObserverPlugin[Any]:
    return ObserverPlugin(name="mine", summary="For tests.", params=NoParams, load=lambda: make)


def test_a_good_observer_has_no_complaints(complaints: Any) -> None:
    assert complaints(ObserverContract, plugin(Curious)) == {}


def test_hook_example_keeps_the_contract(complaints: Any, example: Any) -> None:
    assert complaints(ObserverContract, example("observer")) == {}


@pytest.mark.parametrize(
    ("observer", "test", "said"),
    [
        (Misspelt, "methods_are_known_events", "on_batch_finished"),
        (Asynchronous, "methods_are_known_events", "on_batch_end"),
        (NeedsAStart, "any_run_can_be_observed", "on_train_start"),
        (DividesBySteps, "any_run_can_be_observed", "on_train_start"),
        (NeedsABatch, "any_run_can_be_observed", "on_batch_end"),
        (NeedsAnUpdateInEveryStep, "any_run_can_be_observed", "on_batch_end"),
        (ForgetsToReturn, "veto_is_a_bool", "on_validation_start"),
        (VetoesOnceInAProcess, "same_run_gets_same_vetoes", "votes differently in"),
        (AddsAMetric, "it_does_not_change_steps", "on_batch_end"),
        (ScalesRewards, "it_does_not_change_steps", "on_policy_updated"),
        (AddsAValidationMetric, "it_does_not_change_steps", "on_validation_end"),
        (Draws, "process_wide_state_is_unchanged", "leaves Python's random"),
        (lambda params: object(), "any_run_can_be_observed", "has not all"),
    ],
)
def test_contract_reports_the_mistake(observer: Any, test: str, said: str, complaint: Any) -> None:
    assert said in complaint(ObserverContract, plugin(observer), test)
