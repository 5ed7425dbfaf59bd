"""The token trace of verl's workers is that of the local backend, to 1e-5, however rows are dealt and cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rllm_core.contracts.backend import UpdatePlan, UpdateResult
from rllm_core.data.record import TokenTrace

from .conftest import RAGGED, make_plan, make_updater, plan_of_everything, random_batch, update_locally

SETTINGS = {"num_minibatches": 2, "num_epochs": 2}
COLUMNS = (
    *("row", "position", "epoch", "optimizer_step", "logprob", "weight", "clipped"),
    *("policy_part", "kl_part", "entropy_part"),
)


@pytest.fixture
def plan() -> UpdatePlan:
    return plan_of_everything("ppo", trace=True)


def in_order(result: UpdateResult) -> dict[str, np.ndarray]:
    """Columns by optimizer step, row and position."""
    trace = result.trace
    assert isinstance(trace, TokenTrace)
    order = np.lexsort((trace.position, trace.row, trace.optimizer_step))
    return {name: getattr(trace, name)[order] for name in (*COLUMNS, "entropy")}


@pytest.mark.long
@pytest.mark.parametrize("cut", [{"rows": 1}, {"rows": 5}, {"tokens": 90}], ids=str)
def test_every_token_traces_as_on_local_backend(
    cut: dict[str, int], one_rank: Any, two_ranks: Any, plan: UpdatePlan
) -> None:
    batch = random_batch(RAGGED, roles=("solver", "judge"))
    expected, _ = update_locally(batch, plan, **SETTINGS)
    for group in (one_rank, two_ranks):
        updater = make_updater(max_grad_norm=1.0, **SETTINGS, **cut)
        found = updater.update(group.restart(**cut), batch, plan)
        for name, column in in_order(found).items():
            np.testing.assert_allclose(column, in_order(expected)[name], atol=1e-5, rtol=1e-5, err_msg=name)
        for one, other in zip(found.optimizer_steps, expected.optimizer_steps, strict=True):
            assert vars(one) == pytest.approx(vars(other), rel=1e-5, abs=1e-5)


def test_entropies_that_were_not_computed_are_unknown(one_rank: Any) -> None:
    plan = make_plan("ppo", trace=True)
    updater = make_updater(calculate_entropy=False)

    trace = in_order(updater.update(one_rank.restart(rows=1), random_batch(RAGGED), plan))

    assert np.isnan(trace["entropy"]).all()
    assert np.abs(trace["policy_part"]).max() > 0


def test_a_disabled_term_is_not_in_the_trace(one_rank: Any, plan: UpdatePlan) -> None:
    batch = random_batch(RAGGED, roles=("solver", "judge"))
    result = make_updater(rows=1, use_kl_loss=False).update(one_rank.restart(rows=1), batch, plan)

    assert result.made_with is not None
    assert result.made_with.kl is None
    assert not in_order(result)["kl_part"].any()


def test_a_trace_changes_no_metric(one_rank: Any, plan: UpdatePlan) -> None:
    batch = random_batch(RAGGED, roles=("solver", "judge"))
    plain = make_updater(rows=1).update(one_rank.restart(rows=1), batch, replace(plan, trace=False))
    weights = one_rank.weights()
    traced = make_updater(rows=1).update(one_rank.restart(rows=1), batch, plan)

    assert (plain.trace, plain.metrics) == (None, traced.metrics)
    assert (one_rank.weights() == weights).all()
