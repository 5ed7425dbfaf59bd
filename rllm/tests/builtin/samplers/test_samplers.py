"""The tasks that each sampler draws, given the results it has observed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from expecting import expect_error
from hypothesis import given, strategies as st

from rllm.builtin.samplers.passes import Passes
from rllm.builtin.samplers.plugin import rllm_samplers
from rllm_core.contracts.sampler import Sampler, SamplerSetup, TaskResult
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_core.seeding import derive_seed

SPECS = {spec.name: spec for spec in rllm_samplers()}
NEEDS_RESULTS = sorted(SPECS.keys() - {"uniform", "mixed"})


def make(
    name: str,
    count: int,
    batch_size: int,
    *,
    seed: int = 0,
    data: Callable[[int], Mapping[str, Any]] = lambda _: {},
    **options: Any,
) -> Sampler:
    registry = Registry()
    registry.add(SPECS[name])
    params = choose(registry, "sampler", {"name": name, **options}, "rllm.sampler").params
    tasks = [
        Task(id=str(place), data=data(place), data_source=data(place).get("source", "all")) for place in range(count)
    ]
    made: Sampler = SPECS[name].load()(params, SamplerSetup(tasks=tasks, batch_size=batch_size, seed=seed))
    return made


def by_level(place: int) -> dict[str, int]:
    return {"level": place % 4}


def result(position: int, solved: int, rollouts: int = 8) -> TaskResult:
    outcomes = [number < solved for number in range(rollouts)]
    return TaskResult(position=position, solved=outcomes, rewards=[float(each) for each in outcomes])


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**63), st.integers(0, 5))
def test_uniform_draws_every_task_once_per_epoch(count: int, size: int, seed: int, epoch: int) -> None:
    batches = -(-count // min(size, count))
    sampler = make("uniform", count, min(size, count), seed=seed)
    drawn = [place for batch in range(epoch * batches, (epoch + 1) * batches) for place in sampler.draw(batch)]
    order = np.random.default_rng(derive_seed(seed, "tasks", epoch)).permutation(count)
    assert drawn == order.tolist()


def test_uniform_draws_batches_in_any_order() -> None:
    sampler = make("uniform", 20, 3)
    forwards = [sampler.draw(batch) for batch in range(20)]
    assert [sampler.draw(batch) for batch in reversed(range(20))] == forwards[::-1]


@given(st.integers(1, 12), st.integers(1, 12), st.sets(st.integers(0, 11)))
def test_passes_skip_tasks_without_repeats_in_a_batch(count: int, size: int, skip: set[int]) -> None:
    passes = Passes(range(count), 0)
    available = set(range(count)) - skip
    taken = [passes.take(min(size, count), skip) for _ in range(6)]
    assert all(len(set(batch)) == len(batch) == min(size, len(available)) for batch in taken)
    counts = Counter(place for batch in taken for place in batch)
    assert set(counts) <= available
    if available and not skip and count % size == 0:
        assert max(counts.values()) - min(counts[place] for place in available) <= 1


def test_drop_solved_without_solved_tasks_is_uniform() -> None:
    uniform, sampler = make("uniform", 12, 4), make("drop_solved", 12, 4)
    for batch in range(9):
        drawn = sampler.draw(batch)
        assert drawn == uniform.draw(batch)
        sampler.observe([result(position, 7) for position in drawn])


def test_drop_solved_drops_tasks_from_the_bound_on() -> None:
    sampler = make("drop_solved", 8, 4, bound=0.5)
    sampler.observe([result(0, 4), result(1, 3), result(2, 8)])
    assert {place for batch in range(6) for place in sampler.draw(batch)} == {1, 3, 4, 5, 6, 7}
    assert sampler.metrics() == {"dropped": 0.25}
    # It returns to all tasks after the last one.
    sampler.observe([result(place, 8) for place in range(8)])
    assert {place for batch in range(6, 10) for place in sampler.draw(batch)} == {*range(8)}
    assert sampler.metrics() == {"dropped": 0.0}


def test_difficulty_draws_fixed_shares_of_the_pools() -> None:
    sampler = make("difficulty", 30, 10, easy_share=0.2, hard_share=0.1)
    sampler.observe([result(place, 8 if place < 10 else 0) for place in range(20)])
    pools = Counter("easy" if place < 10 else "hard" if place < 20 else "normal" for place in sampler.draw(0))
    assert pools == {"easy": 2, "hard": 1, "normal": 7}
    assert sampler.metrics() == {"easy": 1 / 3, "normal": 1 / 3, "hard": 1 / 3}


def test_difficulty_fills_a_batch_from_other_pools() -> None:
    sampler = make("difficulty", 10, 10)
    sampler.observe([result(place, 8) for place in range(10)])
    assert sorted(sampler.draw(0)) == list(range(10))
    unseen = make("difficulty", 12, 4)
    assert sorted(place for batch in range(3) for place in unseen.draw(batch)) == list(range(12))


@pytest.mark.parametrize("name", ["difficulty", "thompson"])
def test_tasks_of_a_key_share_a_pass_rate(name: str) -> None:
    sampler = make(name, 40, 10, data=by_level, key="level")
    sampler.observe([result(place, [8, 4, 0, 0][place % 4]) for place in range(8) for _ in range(5)])
    drawn = Counter(place % 4 for batch in range(8) for place in sampler.draw(batch))
    assert drawn[1] > 50


def test_thompson_prefers_half_solved_tasks() -> None:
    sampler = make("thompson", 9, 3, memory=0.9)
    for _ in range(20):
        sampler.observe([result(place, [0, 4, 8][place // 3]) for place in range(9)])
    drawn = Counter(place // 3 for batch in range(20) for place in sampler.draw(batch))
    assert drawn[1] > 55
    assert sampler.metrics()["observed"] == 1


def test_memory_0_keeps_the_latest_results_only() -> None:
    old, new = (make("thompson", 6, 2, memory=0.0) for _ in range(2))
    old.observe([result(0, 8)])
    old.observe([result(0, 1)])
    new.observe([result(0, 1)])
    assert old.state_dict() == new.state_dict()


def test_levels_open_when_the_highest_is_solved() -> None:
    sampler = make("levels", 40, 8, data=by_level, tasks=8, window=2)
    opened = []
    for batch in range(40):
        drawn = sampler.draw(batch)
        opened.append({place % 4 for place in drawn})
        sampler.observe([result(place, 8) for place in drawn])
    assert opened[0] == {0}
    assert [levels for levels, after in zip([set(), *opened], opened, strict=False) if levels != after][1:3] == [
        {0},
        {0, 1},
    ]
    assert opened[-1] <= {2, 3}
    assert sampler.metrics() == {"highest_level": 3, "lowest_level": 2}


def test_levels_stay_while_the_highest_is_not_solved() -> None:
    sampler = make("levels", 40, 8, data=by_level, tasks=8)
    for batch in range(10):
        sampler.observe([result(place, 7) for place in sampler.draw(batch)])
    assert sampler.metrics() == {"highest_level": 0, "lowest_level": 0}
    # They fill a batch from other levels.
    assert sorted(make("levels", 8, 8, data=by_level).draw(0)) == list(range(8))


def by_source(place: int) -> dict[str, Any]:
    return {"source": "abc"[min(place // 4, 2)]}


def test_mixed_draws_ratios_of_options_or_tasks() -> None:
    sampler = make("mixed", 24, 4, data=by_source, ratios={"a": 1, "b": 0.5, "c": 2.5})
    drawn = Counter(by_source(place)["source"] for batch in range(20) for place in sampler.draw(batch))
    assert drawn == {"a": 20, "b": 10, "c": 50}
    assert set(sampler.metrics()) == {"share/a", "share/b", "share/c"}
    sampler = make("mixed", 24, 4, data=lambda place: {**by_source(place), "ratio": [1, 1, 2][min(place // 4, 2)]})
    drawn = Counter(by_source(place)["source"] for batch in range(4) for place in sampler.draw(batch))
    assert drawn == {"a": 4, "b": 4, "c": 8}


def test_every_batch_of_mixed_has_the_ratios() -> None:
    """A method of largest averages draws the first ten tasks from the source with the ratio 10."""
    ratios = {"large": 10.0} | {f"small {number}": 1.0 for number in range(10)}
    names = [*ratios] * 10
    sampler = make("mixed", 110, 10, data=lambda place: {"source": names[place]}, ratios=ratios)
    drawn = [Counter(names[place] for place in sampler.draw(batch)) for batch in range(20)]
    assert {batch["large"] for batch in drawn} == {5}
    assert set(sum(drawn, Counter()).values()) == {100, 10}


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("levels", {}, "missing-column"),
        ("levels", {"key": "name"}, "wrong-value"),
        ("difficulty", {"key": "grade"}, "missing-column"),
        ("difficulty", {"easy": 0.1, "hard": 0.9}, "wrong-value"),
        ("difficulty", {"easy_share": 0.7, "hard_share": 0.7}, "wrong-value"),
        ("thompson", {"memory": 1.0}, "wrong-value"),
        ("drop_solved", {"bound": 0.0}, "wrong-value"),
        ("mixed", {"ratios": {"math": 1.0}}, "unknown-choice"),
        ("mixed", {"ratios": {"all": 0.0}}, "wrong-value"),
        ("uniform", {"bound": 0.5}, "unknown-option"),
    ],
)
def test_wrong_options_are_rejected(name: str, options: dict[str, Any], code: str) -> None:
    with expect_error(ConfigError, code):
        make(name, 4, 2, data=lambda place: {"name": f"task {place}"}, **options)


@pytest.mark.parametrize("name", NEEDS_RESULTS)
@given(
    solves=st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=8),
    ahead=st.integers(0, 2),
)
def test_a_restored_state_continues_exactly(name: str, solves: list[list[int]], ahead: int) -> None:
    """For any results and any number of batches that are drawn ahead of them."""
    sampler, drawn = make(name, 8, 3, data=by_level), list[list[int]]()
    for step, solved in enumerate(solves):
        while len(drawn) <= step + ahead:
            drawn.append(list(sampler.draw(len(drawn))))
        sampler.observe([result(place, count, 4) for place, count in zip(drawn[step], solved, strict=False)])
        restored = make(name, 8, 3, data=by_level)
        restored.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
        assert restored.state_dict() == sampler.state_dict()
        sampler, other = restored, sampler
        assert list(sampler.draw(len(drawn))) == list(other.draw(len(drawn)))
        sampler.load_state_dict(other.state_dict())
        drawn.append(list(sampler.draw(len(drawn) + 1)))
