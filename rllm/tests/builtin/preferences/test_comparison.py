"""Completions are compared with those of other prompts, and slopes of the losses are their derivatives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from expecting import expect_error

from rllm.builtin.preferences.comparison import (
    Numbers,
    PreferenceLoss,
    PreferParams,
    compare,
    count_prompts,
    dpo,
    ipo,
    kto,
    swap_completions,
)
from rllm.builtin.preferences.stages import Prefer
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Step, Trajectory, TrajectoryGroup
from rllm_core.errors import ConfigError
from rllm_core.notices import forget_warnings

RATIO = 0.25
"""log p - log p(reference) of each token."""


async def process(batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
    logprobs = np.where(batch.loss_mask, np.float32(-1), np.float32(0))
    return batch.with_columns(old_logprobs=logprobs, ref_logprobs=logprobs - np.float32(RATIO))


def trajectory(name: str, *turns: tuple[list[int], list[int]]) -> Trajectory:
    return Trajectory(name, [Step(prompt, response) for prompt, response in turns])


def batch_of(*pairs: tuple[Trajectory, ...]) -> TokenBatch:
    groups = [TrajectoryGroup(group_id=f"{at}:0:completion", trajectories=[*pair]) for at, pair in enumerate(pairs)]
    return build_batch(groups)


@pytest.mark.parametrize(
    ("prompts", "left"),
    [("abcd", 4), ("aabb", 4), ("aab", 2), ("abab", 4), ("aaabb", 4), ("abacada", 6), ("baccca", 6)],
)
def test_mismatched_completions_come_from_another_prompt(prompts: str, left: int) -> None:
    """Each completion is used at most once. `left` of them can be."""
    batch = batch_of(*[(trajectory("chosen", ([1, ord(each)], [10 + at, 0])),) for at, each in enumerate(prompts)])
    assert count_prompts(batch) == len(set(prompts))
    found = swap_completions(batch)
    rows = [row.tolist() for row in np.split(found.tokens, found.row_offsets[1:-1])]
    sources = [row[2] - 10 for row in rows]
    assert [[1, ord(prompts[at]), 10 + source, 0] for at, source in zip(found.trajectory, sources, strict=True)] == rows
    assert all(prompts[at] != prompts[source] for at, source in zip(found.trajectory, sources, strict=True))
    assert len(rows) == len(set(sources)) == len(set(found.trajectory.tolist())) == left
    assert found.loss_mask.tolist() == [False, False, True, True] * left
    assert np.isnan(found.sampling_logprobs).tolist() == found.loss_mask.tolist()


def test_swapped_rows_stay_within_the_longest_row() -> None:
    batch = batch_of((trajectory("chosen", ([1, 2, 3], [4])),), (trajectory("rejected", ([1], [5, 6, 7])),))
    mixed = swap_completions(batch)
    assert [row.tolist() for row in np.split(mixed.tokens, mixed.row_offsets[1:-1])] == [[1, 2, 3, 5], [1, 4]]


def test_divergence_is_a_mean_over_mismatched_rows() -> None:
    """Two of three trajectories of the prompt 1 get no completion of the other prompt."""
    batch = batch_of(*[(trajectory("chosen", ([prompt], [2, 3])),) for prompt in (1, 1, 1, 4)])
    backend: Any = SimpleNamespace(process=process)
    assert asyncio.run(compare(backend, batch, PreferParams(loss="kto"))).metrics["kl"] == 2 * RATIO


def test_rows_of_a_trajectory_have_one_advantage() -> None:
    """A completion whose second prompt does not extend the first has two rows."""
    batch = batch_of((trajectory("chosen", ([1], [2]), ([3], [4, 5])), trajectory("rejected", ([1], [6]))))
    backend: Any = SimpleNamespace(process=process)
    found = asyncio.run(compare(backend, batch, PreferParams(beta=0.5)))
    assert batch.n_rows == 3
    difference = 0.5 * (3 - 1) * RATIO
    slope = 0.5 / (1 + np.exp(difference))
    np.testing.assert_allclose(
        found.advantages()[batch.loss_mask], np.float32(slope) * np.array([1, 1, 1, -1]), rtol=1e-6
    )
    assert found.metrics["margin"] == difference


def test_labels_of_two_rows_are_no_pair() -> None:
    """Rows after the checked ones may have other columns."""
    batch = batch_of((trajectory("chosen", ([1], [2])),), (trajectory("rejected", ([1], [3])),))
    backend: Any = SimpleNamespace(process=process)
    with expect_error(ConfigError, "bad-row", "'0'", "dpo"):
        asyncio.run(compare(backend, batch, PreferParams()))


@pytest.mark.parametrize(
    ("loss", "prompts", "skipped"), [("kto", [1, 1], True), ("kto", [1, 2], False), ("dpo", [1], False)]
)
def test_step_with_one_prompt_is_skipped_by_kto(
    loss: Any, prompts: list[int], skipped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_warnings()
    pairs = [(trajectory("chosen", ([each], [2])), trajectory("rejected", ([each], [2]))) for each in prompts]
    step = TrainStep(global_step=0, epoch=0, total_steps=9, tasks=[], batch=batch_of(*pairs))
    context: Any = SimpleNamespace(backend=SimpleNamespace(process=process))
    asyncio.run(Prefer(context, PreferParams(loss=loss))(step))
    assert (step.skip_reason == "too_few_prompts") == skipped
    assert (step.filled_batch.advantages is None) == skipped
    assert ("data.train_batch_size" in capsys.readouterr().err) == skipped


RATIOS = np.array([[0.3, -0.2], [-1.0, 2.0], [4.0, 4.0]])
LENGTHS = np.array([[3, 1], [2, 5], [1, 1]])
GOOD = np.array([True, False, True, True, False, False])
LOSSES: dict[str, Callable[[Numbers], PreferenceLoss]] = {
    "dpo": lambda ratios: dpo(ratios, 0.7),
    "ipo": lambda ratios: ipo(ratios, LENGTHS, 0.7),
    "kto": lambda ratios: kto(
        ratios.ravel(), GOOD, 0.5, PreferParams(beta=0.7, desirable_weight=2, undesirable_weight=3)
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_slopes_are_the_derivatives_of_the_mean(name: str) -> None:
    loss, step = LOSSES[name], 1e-5
    for place in np.ndindex(RATIOS.shape):
        moved = [RATIOS.copy(), RATIOS.copy()]
        moved[0][place] -= step
        moved[1][place] += step
        below, above = (loss(ratios).losses.sum() for ratios in moved)
        expected = (above - below) / (2 * step) / loss(RATIOS).losses.size
        slopes = loss(RATIOS).slopes.reshape(RATIOS.shape)
        assert slopes[place] == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("name", LOSSES)
def test_large_log_ratios_stay_finite(name: str) -> None:
    with np.errstate(all="raise", under="ignore"):
        found = LOSSES[name](RATIOS * 1e4)
    assert np.isfinite(found.losses).all()
    assert np.isfinite(found.slopes).all()


def test_pair_without_difference_has_the_loss_log_two() -> None:
    assert dpo(np.zeros((1, 2)), 0.1).losses.tolist() == [pytest.approx(np.log(2))]
    assert dpo(np.zeros((1, 2)), 0.1).slopes.tolist() == [[pytest.approx(-0.05), pytest.approx(0.05)]]
