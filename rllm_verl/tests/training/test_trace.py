"""The token trace of verl's workers is that of the local backend, to 1e-5, however rows are dealt and cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from local_models import build_tiny

from rllm_core.contracts.backend import KlTerm, RolloutCorrection, UpdatePlan, UpdateResult
from rllm_core.data.batch import TokenBatch
from rllm_core.data.record import TokenTrace
from rllm_local.settings import TrainingSection
from rllm_local.update import Updater as LocalUpdater

from .conftest import make_plan, make_updater, random_batch

TURNS = [[(5, 3), (2, 4)], [(1, 1)], [(30, 12), (1, 1), (4, 6)], [(3, 0), (2, 5)], [(8, 25)], [(2, 2)], [(7, 9)]]
SETTINGS = {"num_minibatches": 2, "num_epochs": 2}
COLUMNS = (
    *("row", "position", "epoch", "optimizer_step", "logprob", "weight", "clipped"),
    *("policy_part", "kl_part", "entropy_part"),
)


@pytest.fixture
def plan() -> UpdatePlan:
    made = make_plan(
        {"solver": "gspo", "judge": "ppo"},
        aggregation="seq-mean-token-mean",
        entropy_coeff=0.1,
        kl=KlTerm(beta=0.1, estimator="k3"),
        rollout_correction=RolloutCorrection(mode="sequence", cap=2.0, floor=0.1, beyond_cap="truncate"),
    )
    return replace(made, trace=True)


@pytest.fixture
def local() -> Callable[..., UpdateResult]:
    def update(batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        optimizer = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-4, "weight_decay": 0.0}
        section = TrainingSection(**optimizer, max_grad_norm=1.0, **SETTINGS)
        updater = LocalUpdater(build_tiny(0), section, total_steps=10, temperature=1.0, max_response_length=50)
        return updater.update(batch, plan)

    return update


def in_order(result: UpdateResult) -> dict[str, np.ndarray]:
    """Columns by optimizer step, row and position."""
    trace = result.trace
    assert isinstance(trace, TokenTrace)
    order = np.lexsort((trace.position, trace.row, trace.optimizer_step))
    return {name: getattr(trace, name)[order] for name in (*COLUMNS, "entropy")}


@pytest.mark.long
@pytest.mark.parametrize("cut", [{"rows": 1}, {"rows": 5}, {"tokens": 90}], ids=str)
def test_every_token_is_traced_as_on_the_local_backend(
    cut: dict[str, int], one_rank: Any, two_ranks: Any, local: Callable[..., UpdateResult], plan: UpdatePlan
) -> None:
    batch = random_batch(TURNS, roles=("solver", "judge"))
    expected = local(batch, plan)
    for group in (one_rank, two_ranks):
        updater = make_updater(max_grad_norm=1.0, **SETTINGS, **cut)
        found = updater.update(group.restart(**cut), batch, plan)
        for name, column in in_order(found).items():
            np.testing.assert_allclose(column, in_order(expected)[name], atol=1e-5, rtol=1e-5, err_msg=name)
        for one, other in zip(found.optimizer_steps, expected.optimizer_steps, strict=True):
            assert vars(one) == pytest.approx(vars(other), rel=1e-5, abs=1e-5)


def test_entropies_that_were_not_computed_are_unknown(one_rank: Any) -> None:
    plan = replace(make_plan("ppo"), trace=True)
    updater = make_updater(calculate_entropy=False)

    trace = in_order(updater.update(one_rank.restart(rows=1), random_batch(TURNS), plan))

    assert np.isnan(trace["entropy"]).all()
    assert np.abs(trace["policy_part"]).max() > 0


def test_a_disabled_term_is_not_in_the_trace(one_rank: Any, plan: UpdatePlan) -> None:
    batch = random_batch(TURNS, roles=("solver", "judge"))
    result = make_updater(rows=1, use_kl_loss=False).update(one_rank.restart(rows=1), batch, plan)

    assert result.made_with is not None
    assert result.made_with.kl is None
    assert not in_order(result)["kl_part"].any()


def test_a_trace_changes_no_metric(one_rank: Any, plan: UpdatePlan) -> None:
    batch = random_batch(TURNS, roles=("solver", "judge"))
    plain = make_updater(rows=1).update(one_rank.restart(rows=1), batch, replace(plan, trace=False))
    weights = one_rank.weights()
    traced = make_updater(rows=1).update(one_rank.restart(rows=1), batch, plan)

    assert (plain.trace, plain.metrics) == (None, traced.metrics)
    assert (one_rank.weights() == weights).all()
