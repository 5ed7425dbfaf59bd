"""The simulation of `benchmarks/async_simulated.py`, in cases with a known result."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TASKS, GROUP, UPDATES = 4, 3, 12
BATCH = TASKS * GROUP


@pytest.fixture(scope="module")
def events() -> Iterator[Any]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("async_sides.events")
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def published(events: Any) -> Any:
    return importlib.import_module("async_sides.published")


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


def test_synchronous_run_takes_the_time_of_the_formula(events: Any, published: Any, world: Any, lengths: Any) -> None:
    batches = [lengths[start : start + BATCH] for start in range(0, UPDATES * BATCH, BATCH)]
    expected = list(accumulate(published.seconds_to_sample(each, 1.0, 0.2) + 3.0 + 0.5 for each in batches))
    for take in (events.in_order, events.as_completed):
        made = events.Simulation(world, 0, take, fixed_version=True).run(UPDATES)
        assert made.ends == pytest.approx(expected)
        assert made.stale == [0] * UPDATES


@pytest.mark.parametrize("fixed_version", [True, False])
@pytest.mark.parametrize("slots", [5, BATCH, 1000])
@pytest.mark.parametrize("staleness", range(9))
def test_batches_in_order_keep_the_bound_and_tasks(
    events: Any, world: Any, lengths: Any, staleness: int, slots: int, fixed_version: bool
) -> None:
    made = events.Simulation(replace(world, slots=slots), staleness, events.in_order, fixed_version=fixed_version).run(
        UPDATES
    )
    assert max(made.stale) <= staleness
    assert made.lengths == pytest.approx(lengths[: UPDATES * BATCH].reshape(UPDATES, BATCH).mean(1))


def test_fixed_version_batches_are_as_old_as_the_bound(events: Any, world: Any) -> None:
    assert events.Simulation(world, 2, events.in_order, fixed_version=True).run(6).stale == [0, 1, 2, 2, 2, 2]


def test_training_in_completion_order_exceeds_the_bound(events: Any, world: Any) -> None:
    """Otherwise the simulation does not show the difference."""
    assert max(events.Simulation(world, 1, events.as_completed, fixed_version=False).run(20).stale) > 1


def test_with_one_slot_rollouts_come_one_after_the_other(events: Any, world: Any, lengths: Any) -> None:
    made = events.Simulation(replace(world, slots=1), 0, events.in_order, fixed_version=True).run(1)
    assert made.ends == pytest.approx([lengths[:BATCH].sum() + 3.5])


def test_environment_time_is_part_of_the_step(events: Any, world: Any) -> None:
    waiting = replace(world, turns_of=lambda rollout: [(1.0, 7.0), (1.0, float(rollout))])
    made = events.Simulation(replace(waiting, rate=lambda sequences: 1.0), 0, events.in_order, fixed_version=True).run(
        1
    )
    assert made.ends == pytest.approx([1 + 7 + 1 + (BATCH - 1) + 3.5])


def test_one_thread_for_both_sides_saves_nothing(events: Any, world: Any) -> None:
    core = replace(
        world,
        turns_of=lambda rollout: [(1.0, 0.0)],
        rate=lambda sequences: 1 / sequences,
        slots=BATCH,
        samples_during_updates=False,
    )
    steps = [
        events.Simulation(core, s, events.in_order, fixed_version=True).run(13).seconds_per_step(6) for s in (0, 1, 2)
    ]
    assert steps == pytest.approx([BATCH + 3.5] * 3)


def test_alternating_versions_halve_the_rate(events: Any, world: Any) -> None:
    """Fixed-version batches of two versions run at once. With the latest weights there is one version."""
    turns = replace(
        world, turns_of=lambda rollout: [(10.0, 0.0)], rate=lambda sequences: 1.0, update=5.0, sync_weights=0.0
    )
    alternating = replace(turns, versions_at_once=False)
    # Batches 0 and 1 begin at 0 and end at 10. Batch 2 begins at 15, after the first update, and batch 3 at 20.
    ends = {
        name: events.Simulation(each, 1, events.in_order, fixed_version=fixed_version).run(3).ends
        for name, each, fixed_version in (
            ("at once", turns, True),
            ("latest", alternating, False),
            ("fixed", alternating, True),
        )
    }
    assert ends["at once"] == ends["latest"] == pytest.approx([15.0, 20.0, 30.0])
    # From 20 the rate is half: 5 of 10 tokens are left, and batch 3 runs too.
    assert ends["fixed"] == pytest.approx([15.0, 20.0, 35.0])


def test_no_batch_begins_during_a_validation(events: Any, world: Any) -> None:
    validated = replace(
        world, turns_of=lambda rollout: [(2.0, 0.0)], rate=lambda sequences: 1.0, validation=100.0, validated_every=2
    )
    # Updates take 3.5. Batch 2 begins at 5.5 and waits, batch 3 begins at 109.
    made = events.Simulation(validated, 1, events.in_order, fixed_version=True).run(4)
    assert made.ends == pytest.approx([5.5, 9.0, 112.5, 116.0])
    assert made.stale == [0, 1, 1, 1]
