"""Neither ranks nor micro-batches nor rows of padding change a number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rllm_core.contracts.backend import UpdatePlan
from rllm_core.data.batch import TokenBatch
from rllm_verl.columns import ColumnSettings, fill_columns, without_adapter
from rllm_verl.rows import MicroBatching

from .conftest import RAGGED, make_plan, make_updater, plan_of_everything, random_batch

CUTS = [{"rows": 1}, {"rows": 5}, {"tokens": 60}]


def _update_weights(
    group: Any, batch: TokenBatch, plan: UpdatePlan, cut: dict[str, int]
) -> tuple[dict[str, float], torch.Tensor]:
    group.restart(**cut)
    updater = make_updater(num_minibatches=2, num_epochs=2, **cut)
    first = updater.update(group, batch, plan).metrics
    second = updater.update(group, batch, replace(plan, global_step=1, seed=plan.seed + 1)).metrics
    return {f"{name}/1": value for name, value in first.items()} | second, group.weights()


@pytest.mark.long
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_updates_agree_for_ranks_and_micro_batches(cut: dict[str, int], one_rank: Any, two_ranks: Any) -> None:
    # One of the losses draws at random.
    batch, plan = random_batch(RAGGED, roles=("solver", "judge")), plan_of_everything("clip_cov")
    expected, weights = _update_weights(one_rank, batch, plan, {"tokens": 2000})
    for group in (one_rank, two_ranks):
        metrics, updated = _update_weights(group, batch, plan, cut)
        assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-5)
        torch.testing.assert_close(updated, weights, atol=1e-5, rtol=0)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_columns_agree_on_one_and_two_ranks(cut: dict[str, int], one_rank: Any, two_ranks: Any) -> None:
    batch = random_batch(RAGGED)
    micro = MicroBatching(rows=cut.get("rows", 1), max_tokens=cut.get("tokens"))
    settings = ColumnSettings(temperature=1.0, recompute_old_logprobs=True, micro_batching=micro)
    on_one, on_two = (
        fill_columns(group.restart(**cut), batch, frozenset({"sum_pi_squared"}), settings)
        for group in (one_rank, two_ranks)
    )
    for name in ("old_logprobs", "sum_pi_squared"):
        np.testing.assert_allclose(getattr(on_two, name), getattr(on_one, name), atol=1e-5)
        assert (getattr(on_one, name)[~batch.loss_mask] == 0).all()


def test_one_row_is_enough_for_two_ranks(one_rank: Any, two_ranks: Any) -> None:
    batch = random_batch([[(4, 6)]])
    expected = make_updater(rows=1).update(one_rank.restart(rows=1), batch, make_plan()).metrics
    metrics = make_updater(rows=3).update(two_ranks.restart(rows=3), batch, make_plan()).metrics
    assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_sampling_logprobs_serve_as_old_unless_recomputed(one_rank: Any) -> None:
    batch = random_batch(RAGGED)
    settings = ColumnSettings(temperature=1.0, recompute_old_logprobs=False, micro_batching=MicroBatching())
    filled = fill_columns(one_rank, batch, frozenset(), settings)
    assert filled.old_logprobs is batch.sampling_logprobs


def test_missing_entropies_are_estimated_from_sampled_tokens(one_rank: Any) -> None:
    batch = random_batch(RAGGED)
    exact = make_updater().update(one_rank.restart(rows=1), batch, make_plan()).metrics
    estimated = make_updater(calculate_entropy=False).update(one_rank.restart(rows=1), batch, make_plan()).metrics
    assert estimated["actor/entropy"] != exact["actor/entropy"]
    assert estimated == pytest.approx(exact | {"actor/entropy": estimated["actor/entropy"]}, rel=1e-6)


def test_nothing_but_notes_comes_back_from_an_update(one_rank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probs of a minibatch would be kept until its end and sent to the driver, which does not look at them."""
    answers = []
    forward_backward = one_rank.forward_backward
    monkeypatch.setattr(
        one_rank, "forward_backward", lambda data: answers.append(forward_backward(data)) or answers[-1]
    )
    make_updater().update(one_rank.restart(rows=1), random_batch(RAGGED), make_plan())
    assert [set(answer.keys()) for answer in answers] == [{"metrics"}]


@pytest.mark.smoke
def test_lora_reference_is_the_model_without_adapter(with_adapter: Any) -> None:
    batch = random_batch(RAGGED)
    settings = ColumnSettings(
        temperature=1.0, recompute_old_logprobs=True, micro_batching=MicroBatching(), reference=without_adapter
    )
    before = fill_columns(with_adapter, batch, frozenset({"ref_logprobs"}), settings)
    np.testing.assert_allclose(before.ref_logprobs, before.old_logprobs, atol=1e-6)
    for step in range(3):
        make_updater(learning_rate=0.05).update(with_adapter, batch, make_plan(global_step=step))
    after = fill_columns(with_adapter, batch, frozenset({"ref_logprobs"}), settings)
    assert np.abs(after.old_logprobs - before.old_logprobs).max() > 0.01
    np.testing.assert_allclose(after.ref_logprobs, before.ref_logprobs, atol=1e-6)
