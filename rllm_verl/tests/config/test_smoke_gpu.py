"""`make smoke-gpu` without a device: its words, its numbers, and what it says."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from expecting import check_values

from rllm.config.compose import compose
from rllm.config.layers import layers_from_overrides
from rllm_core.plugins.registry import Registry

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
GOOD = {
    "train/weight_version": 1.0,
    "actor/grad_norm": 0.1,
    "actor/rollout_logprob_difference": 0.004,
    "actor/kl_ref": 0.0,
    "actor/loss": 0.0,
}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture
def scenario(load: Callable[[str], ModuleType]) -> Any:
    """The one with a reference model, which expects most."""
    (found,) = (each for each in load("smoke_sides.scenarios").SCENARIOS if "reference" in each.name)
    return found


@pytest.fixture
def outcome(load: Callable[[str], ModuleType], tmp_path: Path) -> Any:
    """Of a run in which all is as expected."""
    log = tmp_path / "log.txt"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    steps = [GOOD | {"train/weight_version": float(number)} for number in range(1, 6)]
    return load("smoke_sides.running").Outcome(returned=0, seconds=9.0, steps=steps, log=log)


def _with(outcome: Any, step: int, **metrics: float) -> Any:
    changed = [dict(each) for each in outcome.steps]
    changed[step - 1] |= {name.replace("__", "/"): value for name, value in metrics.items()}
    return replace(outcome, steps=changed)


def test_numbers_as_expected_are_no_problem(load: Any, scenario: Any, outcome: Any) -> None:
    results = load("smoke_sides.results")
    assert not [*results.problems(scenario, outcome)]
    assert not [*results.problems(scenario, _with(outcome, 2, actor__kl_ref=0.5))]
    assert "actor/rollout_logprob_difference 0.004 to 0.004 (below 0.02)" in results.metrics(scenario, outcome)


@pytest.mark.parametrize(
    ("step", "metrics", "values"),
    [
        (2, {"actor__rollout_logprob_difference": 0.3}, ["actor/rollout_logprob_difference is 0.3", 0.02]),
        (2, {"actor__rollout_logprob_difference": float("nan")}, ["actor/rollout_logprob_difference is nan"]),
        (2, {"actor__grad_norm": 0.0}, ["actor/grad_norm is 0"]),
        (2, {"train__weight_version": 1.0}, ["train/weight_version is 1"]),
        (1, {"actor__kl_ref": 0.5}, ["actor/kl_ref is 0.5"]),
    ],
)
def test_unexpected_numbers_are_reported_with_their_step(
    load: Any, scenario: Any, outcome: Any, step: int, metrics: dict[str, float], values: list[object]
) -> None:
    (problem,) = load("smoke_sides.results").problems(scenario, _with(outcome, step, **metrics))
    check_values(problem, *values, f"step {step}")


def test_early_end_hang_or_leftover_process_is_reported(load: Any, scenario: Any, outcome: Any) -> None:
    results = load("smoke_sides.results")
    for changes, values in (
        ({"returned": 1, "left": ["71 VLLM::EngineCore"]}, ("exit code 1", "71 VLLM::EngineCore")),
        ({"returned": None}, ("1200 s",)),
        ({"steps": outcome.steps[:3]}, ("3 steps", 5)),
    ):
        check_values("".join(results.problems(scenario, replace(outcome, **changes))), *values)
    assert results.last_lines(outcome.log).splitlines()[0].strip() == "line 80"


@pytest.mark.long
def test_every_run_has_a_configuration(load: Any, registry: Registry) -> None:
    for each in load("smoke_sides.scenarios").SCENARIOS:
        train, environment, *words = each.command("/a/model", "cuda", 2)
        assert (train, environment) == ("train", "guess")
        composed = compose(registry, layers_from_overrides(_as_keys(words)))
        assert composed.config.rllm.trainer.total_batches == 5


def _as_keys(words: list[str]) -> list[str]:
    """Flags of the command as the keys that they stand for, with the backend first."""
    backend = "verl" if "rllm/backend=verl" in words else "local"
    flags = {
        "--model": "actor_rollout_ref.model.path" if backend == "verl" else "model.name",
        "--profile": "rllm.profile",
    }
    named = [f"{flags[flag]}={value}" for flag, value in pairwise(words) if flag in flags]
    return [f"rllm.backend={backend}", *named, *(word for word in words if "=" in word and word != "rllm/backend=verl")]
