"""A run warns once if its steps give no gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from plain_groups import make_groups

from rllm.training.step_warnings import STEPS, GradientWarning
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import build_batch

EQUAL, MIXED, SOLVED = [[0.0, 0.0], [0.5, 0.5]], [[0.0, 1.0]], [[1.0, 1.0]]


def make_step(rewards: Sequence[Sequence[float]] = (), skip_reason: str = "") -> TrainStep:
    """Return a step with the advantages that the mean of each group gives."""
    batch = build_batch(make_groups(rewards))
    centered = [np.array(group) - np.mean(group) for group in rewards]
    of_trajectory = np.concatenate(centered) if centered else np.zeros(0)
    advantages = np.repeat(of_trajectory[batch.trajectory], batch.row_lengths) * batch.loss_mask
    step = TrainStep(global_step=0, epoch=0, total_steps=9, tasks=[], skip_reason=skip_reason)
    step.batch = batch.with_columns(advantages=advantages.astype(np.float32))
    step.metrics["batch/solve_all"] = float(np.mean([min(group) == 1 for group in rewards])) if rewards else 0.0
    return step


def warnings_of(steps: Sequence[TrainStep], first_step: int = 0) -> list[str]:
    warnings: list[str] = []
    observer = GradientWarning(warnings.append)
    observer.on_train_start(9, first_step)
    for step in steps:
        observer.on_batch_end(step)
    observer.on_train_end(len(steps))
    return warnings


@pytest.mark.parametrize(
    ("step", "metric"),
    [
        (make_step(EQUAL), "reward/*/std"),
        (make_step(SOLVED), "batch/solve_all"),
        (make_step(skip_reason="everything_masked"), "batch/masked_*"),
        (make_step(skip_reason="all_groups_rejected"), "batch/solve_none"),
        (make_step(skip_reason="mine"), "batch/skipped_mine"),
    ],
)
def test_cause_is_reported_once(step: TrainStep, metric: str) -> None:
    for number in (1, STEPS, 2 * STEPS):
        (warning,) = warnings_of([step] * number)
        assert metric in warning
        assert "docs/how-to/debug-learning.md" in warning


@pytest.mark.parametrize(
    ("steps", "first_step"),
    [
        ([MIXED, EQUAL, EQUAL, MIXED, EQUAL, EQUAL, MIXED], 0),
        ([MIXED, *[SOLVED] * STEPS], 0),
        ([SOLVED] * STEPS, 5),
        ([MIXED, EQUAL], 0),
    ],
)
def test_healthy_run_has_no_warning(steps: list[list[list[float]]], first_step: int) -> None:
    assert warnings_of([make_step(rewards) for rewards in steps], first_step) == []


def test_waiting_steps_are_ignored() -> None:
    waiting = make_step(skip_reason="waiting_for_more_groups")
    assert warnings_of([waiting] * STEPS) == []
    assert len(warnings_of([make_step(MIXED), *[make_step(EQUAL), waiting] * STEPS])) == 1


def test_teacher_is_a_gradient() -> None:
    step = make_step(EQUAL)
    assert step.batch is not None
    step.batch = step.batch.with_columns(observation_weights=np.ones(len(step.batch.tokens), np.float32))
    assert warnings_of([step] * STEPS) == []
