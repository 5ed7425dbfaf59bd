"""Verdicts about scores, without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from rllm.builtin.weight_check.observer import make_probe
from rllm.builtin.weight_check.verdicts import (
    Check,
    Equal,
    Faulty,
    Judge,
    Rounding,
    Scores,
    Stale,
    TensorsDiffer,
    Unknown,
    Verdict,
    rounding_limit,
)
from rllm_core.contracts.weight_comparison import KnownFault, Probe, TensorDifference, WeightComparison

N = 128
GENERATOR = np.random.default_rng(0)
FIRST = -GENERATOR.uniform(1, 5, N).astype(np.float32)


def shift(scores: Scores, size: float) -> Scores:
    return scores + np.float32(size) * GENERATOR.standard_normal(N).astype(np.float32)


class Comparison(WeightComparison):
    vocabulary, max_context, layers = 100, 512, 4

    def __init__(self, **facts: Any) -> None:
        self.dtype = "float32"
        self.repeated: Scores | None = None
        self.suspects: Mapping[KnownFault, Scores] = {}
        self.tensors: list[TensorDifference] | None = None
        self.__dict__.update(facts)

    async def of_trainer(self, probe: Probe) -> Scores:
        assert self.repeated is not None
        return self.repeated

    async def of_samplers(self, probe: Probe) -> Mapping[str, Scores]:
        raise AssertionError

    async def of_suspects(self, probe: Probe) -> Mapping[KnownFault, Scores]:
        return self.suspects

    async def different_tensors(self, sampler: str, *, is_suspect: bool) -> list[TensorDifference] | None:
        return self.tensors


def judge(
    trainer: Scores, sampler: Scores, *history: tuple[Scores, Scores], version: int | None = None, **facts: Any
) -> Verdict:
    """Return the verdict after earlier checks, which are pairs of the trainer's and the sampler's scores."""
    comparison = Comparison(**{"repeated": trainer} | facts)
    checks = [Check(version, mine, {"one": own}) for version, (mine, own) in enumerate(history)]
    made = Judge(comparison, make_probe(100, 72), checks)
    check = Check(len(checks) if version is None else version, trainer, {"one": sampler})
    return asyncio.run(made.judge(check, "one"))


def test_equal_scores_are_equal() -> None:
    assert judge(FIRST, FIRST.copy(), (FIRST, FIRST)) == Equal(difference=0.0)


def test_small_difference_is_rounding() -> None:
    verdict = judge(FIRST, shift(FIRST, 1e-7))
    assert isinstance(verdict, Rounding)
    assert 0 < verdict.difference < verdict.limit == pytest.approx(20 * 2.0**-24 * 5**0.5 * np.abs(FIRST).max())


@pytest.mark.parametrize(("tokens", "verdict"), [(16, Rounding), (17, Unknown)])
def test_rounding_may_be_amplified_at_few_tokens(tokens: int, verdict: type[Verdict]) -> None:
    sampler = FIRST.copy()
    sampler[:tokens] += np.float32(0.1)
    assert type(judge(FIRST, sampler)) is verdict


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 2.0**-24), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_limit_grows_with_type_and_depth(dtype: str, unit: float) -> None:
    comparison = Comparison(dtype=dtype)
    expected = (4 * unit + 16 * 2.0**-24) * np.sqrt(5) * np.abs(FIRST).max()
    assert rounding_limit(comparison, FIRST) == pytest.approx(expected)
    comparison.layers = 19
    assert rounding_limit(comparison, FIRST) == pytest.approx(2 * expected)


def test_repeated_scores_after_an_update_are_stale() -> None:
    """Rounding hides the change: its size is a tenth of the sampler's usual difference."""
    sampler = shift(FIRST, 1e-2)
    verdict = judge(shift(FIRST, 1e-3), sampler, (FIRST, sampler), dtype="bfloat16")
    assert isinstance(verdict, Stale)
    assert verdict.since == 0


def test_stale_since_the_first_equal_sync() -> None:
    sampler = shift(FIRST, 1e-2)
    history = [(shift(FIRST, 1e-3), sampler) for _ in range(3)]
    verdict = judge(shift(FIRST, 1e-3), sampler, (FIRST, FIRST), *history, dtype="bfloat16")
    assert isinstance(verdict, Stale)
    assert verdict.since == 1


def test_repeated_scores_without_an_update_are_rounding() -> None:
    sampler = shift(FIRST, 1e-2)
    assert isinstance(judge(FIRST, sampler, (FIRST, sampler), dtype="bfloat16"), Rounding)


def test_few_changed_scores_are_no_evidence() -> None:
    sampler, trainer = shift(FIRST, 1e-2), FIRST.copy()
    trainer[:3] += np.float32(0.01)
    assert isinstance(judge(trainer, sampler, (FIRST, sampler), dtype="bfloat16"), Rounding)


def test_movement_far_below_rounding_is_no_evidence() -> None:
    """A sampler in a type with few bits may round the new weights to its old ones."""
    sampler = shift(FIRST, 1e-2)
    assert isinstance(judge(shift(FIRST, 1e-4), sampler, (FIRST, sampler), dtype="bfloat16"), Rounding)


def test_trainer_without_repeatable_scores_is_no_evidence() -> None:
    sampler, trainer = shift(FIRST, 1e-2), shift(FIRST, 1e-3)
    verdict = judge(trainer, sampler, (FIRST, sampler), dtype="bfloat16", repeated=shift(FIRST, 1e-3))
    assert isinstance(verdict, Rounding)


def test_scores_near_an_earlier_trainer_are_stale() -> None:
    """The sampler was not compared at that sync."""
    second = shift(FIRST, 0.1)
    verdict = judge(shift(second, 0.1), shift(second, 1e-6), (FIRST, FIRST), (second, FIRST))
    assert isinstance(verdict, Stale)
    assert verdict.since == 1


def test_scores_between_two_trainers_are_not_stale() -> None:
    trainer = shift(FIRST, 0.1)
    assert isinstance(judge(trainer, (FIRST + trainer) / 2, (FIRST, FIRST)), Unknown)


def test_scores_before_an_earlier_trainer_are_unknown() -> None:
    trainer = shift(FIRST, 0.1)
    assert isinstance(judge(trainer, FIRST - np.float32(0.8) * (trainer - FIRST), (FIRST, FIRST)), Unknown)


def test_earlier_check_of_its_version_is_no_evidence() -> None:
    """A resumed run may score with other kernels, and its sampler may be a service."""
    sampler = shift(FIRST, 1e-2)
    assert isinstance(judge(shift(FIRST, 1e-3), sampler, (FIRST, sampler), version=0, dtype="bfloat16"), Rounding)


def test_suspect_that_explains_the_scores_is_the_fault() -> None:
    suspects = {KnownFault.NO_ADAPTER: shift(FIRST, 0.3), KnownFault.ADAPTER_TWICE: shift(FIRST, 0.3)}
    sampler = shift(suspects[KnownFault.ADAPTER_TWICE], 1e-7)
    verdict = judge(FIRST, sampler, suspects=suspects)
    assert isinstance(verdict, Faulty)
    assert verdict.fault is KnownFault.ADAPTER_TWICE


def test_suspect_farther_than_rounding_is_not_the_fault() -> None:
    suspects = {KnownFault.BFLOAT16: shift(FIRST, 0.3)}
    assert isinstance(judge(FIRST, shift(suspects[KnownFault.BFLOAT16], 0.05), suspects=suspects), Unknown)


def test_fault_replaces_an_equal_earlier_sync() -> None:
    trainer = shift(FIRST, 0.1)
    verdict = judge(trainer, FIRST, (FIRST, FIRST), suspects={KnownFault.NO_ADAPTER: FIRST})
    assert isinstance(verdict, Faulty)
    assert verdict.fault is KnownFault.NO_ADAPTER


@pytest.mark.parametrize("size", [1e-7, 0.1])
def test_different_tensors_are_named_at_any_difference(size: float) -> None:
    tensors = [TensorDifference(name=f"layer.{number}") for number in range(6)]
    verdict = judge(FIRST, shift(FIRST, size), tensors=tensors)
    assert isinstance(verdict, TensorsDiffer)
    assert verdict.text == "tensors differ: layer.0, layer.1, layer.2, layer.3 and 2 more"


def test_not_finite_scores_of_a_sampler_are_unknown() -> None:
    sampler = FIRST.copy()
    sampler[3] = np.nan
    assert isinstance(judge(FIRST, sampler, (FIRST, FIRST)), Unknown)
