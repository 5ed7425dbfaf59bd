"""The simulation of `benchmarks/async_simulated.py`, in cases with a known result."""

from __future__ import annotations

import importlib
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TASKS, GROUP, UPDATES = 4, 3, 12
BATCH = TASKS * GROUP


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("async_sides.events")


@pytest.fixture
def lengths() -> Any:
    """Return the lengths of responses. One is 100 times the median."""
    drawn = np.random.default_rng(20).lognormal(0.0, 1.5, 24 * BATCH)
    drawn[5 * BATCH + 2] = 100.0
    return drawn


@pytest.fixture
def world(events: Any, lengths: Any) -> Any:
    return events.World(
        tasks=TASKS,
        group=GROUP,
        turns_of=lambda rollout: [(lengths[rollout], 0.0)],
        rate=lambda sequences: 1 / max(1.0, 0.2 * sequences),
        update=3.0,
        sync_weights=0.5,
    )


def test_synchronous_run_takes_the_time_of_the_formula(events: Any, world: Any, lengths: Any) -> None:
    seconds_to_sample = importlib.import_module("async_sides.published").seconds_to_sample
    batches = [lengths[start : start + BATCH] for start in range(0, UPDATES * BATCH, BATCH)]
    expected = list(accumulate(seconds_to_sample(each, 1.0, 0.2) + 3.0 + 0.5 for each in batches))
    for take in (events.in_order, events.as_completed):
        made = events.Simulation(world, 0, take, fixed_version=True).run(UPDATES)
        assert made.ends == pytest.approx(expected)
        assert made.stale == [0] * UPDATES


@pytest.mark.parametrize(("staleness", "slots", "fixed_version"), [(0, 5, True), (3, 1000, False), (8, BATCH, True)])
def test_batches_in_order_keep_the_bound_and_tasks(
    events: Any, world: Any, lengths: Any, staleness: int, slots: int, fixed_version: bool
) -> None:
    simulated = events.Simulation(replace(world, slots=slots), staleness, events.in_order, fixed_version=fixed_version)
    made = simulated.run(UPDATES)
    assert made.stale == [min(update, staleness) for update in range(UPDATES)] or not fixed_version
    assert max(made.stale) <= staleness
    assert made.lengths == pytest.approx(lengths[: UPDATES * BATCH].reshape(UPDATES, BATCH).mean(1))


def test_training_in_completion_order_exceeds_the_bound(events: Any, world: Any) -> None:
    """Otherwise the simulation does not show the difference."""
    assert max(events.Simulation(world, 1, events.as_completed, fixed_version=False).run(20).stale) > 1


def test_no_batch_begins_during_a_validation(events: Any, world: Any) -> None:
    steady = {"rate": lambda sequences: 1.0, "validation": 100.0, "validated_every": 2}
    validated = replace(world, turns_of=lambda rollout: [(2.0, 0.0)], **steady)
    # Updates take 3.5. Batch 2 begins at 5.5 and waits, batch 3 begins at 109.
    made = events.Simulation(validated, 1, events.in_order, fixed_version=True).run(4)
    assert made.ends == pytest.approx([5.5, 9.0, 112.5, 116.0])
    assert made.stale == [0, 1, 1, 1]
