"""Stop and resume: unfinished batches are generated again, and no task is lost."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error
from scripted_world import ahead

from rllm_core.errors import CheckpointError

DYNAMIC = {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": "dynamic"}


def _tasks(*runs: Any) -> list[set[str]]:
    return [{episode.task_id for episode in step.generated} for made in runs for step in made.steps]


@pytest.mark.long
@pytest.mark.parametrize(("staleness", "stop_after", "partial"), [(1, 3, False), (3, 1, True)], ids=["fixed", "latest"])
def test_resumed_run_generates_the_next_tasks(run: Any, staleness: int, stop_after: int, partial: bool) -> None:
    whole = run(ahead(staleness, partial), "whole")
    first = run(ahead(staleness, partial), stop_after=stop_after)
    rest = run(ahead(staleness, partial), resume=True)
    assert (len(first.steps), len(rest.steps)) == (stop_after, 6 - stop_after)
    assert _tasks(first, rest) == _tasks(whole)
    assert all(step.metrics["staleness/max"] <= staleness for step in rest.steps)
    assert [step.task_batch for step in rest.steps] == list(range(stop_after, 6))


def test_resumed_run_with_more_batches_continues_after_used_ones(run: Any) -> None:
    settings = {**ahead(3), **DYNAMIC}
    first, rest = run(settings, stop_after=2), run(settings, resume=True)
    taken = sum(step.rollout_batches for step in first.steps)
    assert rest.steps[0].task_batch >= taken
    assert [step.weight_version for step in rest.steps] == [3, 4, 5, 6]
    assert all(step.metrics["staleness/max"] <= 3 for step in rest.steps)


@pytest.mark.long
def test_resumed_synchronous_run_ends_with_same_weights(run: Any) -> None:
    whole = run({}, "whole")
    run({}, stop_after=3)
    assert run({}, resume=True).digest == whole.digest


@pytest.mark.long
@pytest.mark.parametrize(("estimator", "staleness"), [("rae", 0), ({"name": "mix", "parts": ["grpo", "spo"]}, 2)])
def test_resumed_run_with_stateful_estimator_is_exact(run: Any, estimator: Any, staleness: int) -> None:
    settings = {**(ahead(staleness) if staleness else {}), "rllm.algorithm.adv_estimator": estimator}
    whole = run(settings, "whole")
    run(settings, stop_after=3)
    assert run(settings, resume=True).digest == whole.digest


@pytest.mark.parametrize(("before", "now"), [(2, 0), (0, 2)])
def test_another_bound_is_refused(run: Any, before: int, now: int) -> None:
    run(ahead(before) if before else {}, stop_after=2)
    with expect_error(CheckpointError, "run-changed", f"a staleness of {before}", now):
        run(ahead(now) if now else {}, resume=True)
