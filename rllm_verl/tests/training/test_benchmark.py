"""The parts of benchmarks/verl.py that can be looked at without running it."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Load = Callable[[str], ModuleType]
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    # At the end: benchmarks/verl.py has the name of the library.
    monkeypatch.setattr(sys, "path", [*sys.path, str(BENCHMARKS)])
    return importlib.import_module


def test_all_ways_of_conversion_give_workers_the_same_tokens(load: Load) -> None:
    conversion, padded = load("verl_conversion"), load("verl_padded")
    limits = padded.RowLimits(prompt=5, response=7)
    rows = conversion.list_rows(4, limits)
    rows[1] = padded.ListRow(rows[1].prompt_ids[:3], rows[1].response_ids[:2], [1, 1], [0.0, 0.0])
    lists = padded.from_lists(rows, limits)
    arrays = padded.from_arrays([padded.ArrayRow.from_lists(row) for row in rows], limits)
    ours = conversion.converted(conversion.batch_of(rows), 1)
    for name in ("input_ids", "position_ids"):
        expected = [row.tolist() for row in lists[name].unbind()]
        assert [row.tolist() for row in arrays[name].unbind()] == expected
        by_row = dict(zip(ours["row"].tolist(), ours[name].unbind(), strict=True))
        assert [by_row[row].tolist() for row in range(4)] == expected
    for name in ("response_mask", "rollout_log_probs", "attention_mask", "prompts", "responses"):
        assert lists[name].tolist() == arrays[name].tolist()


def test_conversion_is_measured_on_tiny_sizes(load: Load) -> None:
    conversion, padded = load("verl_conversion"), load("verl_padded")
    limits = padded.RowLimits(prompt=5, response=7)
    assert all(seconds > 0 for seconds in conversion.against_padding(4, limits, 1).values())
    assert list(conversion.growth(4, limits, (1, 4), 2, 1)) == [4, 16]


def test_a_step_costs_what_is_neither_sampled_nor_computed_nor_weights_moved(load: Load) -> None:
    said = {"began": 10.0, "ended": 20.0, "step": 9.0, "generation": 3.0, "transfer": 1.0, "tokens": 64.0}
    cost = load("verl_steps").StepCost.from_lines(said, [(9.0, 9.5), (14.0, 16.0), (17.0, 17.5), (20.5, 30.0)])
    assert (cost.driver, cost.around) == (2.5, 3.5)
    assert (cost.without_generation, cost.whole) == (7.0, 10.0)


def test_a_workload_reaches_the_sides_as_it_is(load: Load) -> None:
    workload = load("verl_sides.workload").Workload
    work = workload(
        model="/model",
        directory="/runs",
        steps=3,
        prompts=2,
        rollouts=2,
        repeats=1,
        max_response_length=8,
        minibatches=1,
        micro_batch_tokens=64,
    )
    assert workload.read(work.to_json()) == work
    assert json.loads(work.to_json())["steps"] == 3


def test_a_start_is_dealt_to_its_phases(load: Load) -> None:
    by_phase = load("verl_start").by_phase
    said = [
        (11.0, "training on sum with backend verl"),
        (12.0, "verl: starting Ray"),
        (15.0, "verl: starting the training workers"),
        (15.5, "warning: a line of others"),
        (25.0, "verl: bringing weights to the rollout servers"),
        (27.0, "step 1/1  solved   1.2%"),
        (90.0, "1 steps in 80 s"),
    ]
    assert by_phase(10.0, said) == {
        "starting the program": 2.0,
        "starting Ray": 3.0,
        "starting the training workers": 10.0,
        "bringing weights to the rollout servers, making the first step": 2.0,
    }
