"""verl's own losses, used as ours are, give what a direct call of verl's function gives."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from expecting import expect_error
from local_models import build_tiny

from rllm_backend_kit.loss import rollout_weights
from rllm_core.contracts.backend import KlTerm, RolloutCorrection
from rllm_core.contracts.loss import LossInput
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import LossError
from rllm_verl.verl_policy_loss import VerlPolicyLoss

from .conftest import make_plan, make_updater, random_batch

TURNS = [[(5, 3), (2, 4)], [(1, 1)], [(30, 12), (1, 1), (4, 6)], [(3, 0), (2, 5)], [(8, 25)], [(2, 2)], [(7, 9)]]
AGGREGATIONS = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
CORRECTION = RolloutCorrection(mode="token", cap=1.3, floor=0.0, beyond_cap="truncate")


def _direct(
    model: Any, batch: TokenBatch, name: str, aggregation: str, correction: RolloutCorrection | None
) -> tuple[float, float]:
    """Loss and gradient norm of verl's function on the whole batch as one rectangle."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig

    width = int(batch.row_lengths.max())
    weights = np.ones(len(batch.tokens), np.float32)
    if correction is not None:
        columns = map(torch.from_numpy, (batch.old_logprobs, batch.sampling_logprobs))
        row_ids = torch.from_numpy(np.repeat(np.arange(batch.n_rows), batch.row_lengths))
        weights = rollout_weights(*columns, row_ids, correction).numpy()

    def rectangle(values: np.ndarray) -> torch.Tensor:
        padded = [np.pad(values[start:end], (0, width - (end - start))) for start, end in pairwise(batch.row_offsets)]
        return torch.from_numpy(np.stack(padded))[:, 1:]

    logprobs = []
    for start, end in pairwise(batch.row_offsets):
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        said = torch.log_softmax(model(input_ids=ids[None]).logits[0], dim=-1)[:-1].gather(1, ids[1:, None])[:, 0]
        logprobs.append(torch.nn.functional.pad(said, (0, width - len(ids))))
    config = ActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        use_dynamic_bsz=True,
        clip_ratio=0.2,
        clip_ratio_low=0.2,
        clip_ratio_high=0.2,
        clip_ratio_c=3.0,
    )
    config.global_batch_info.update(loss_scale_factor=50)
    loss, _ = get_policy_loss_fn(name)(
        old_log_prob=rectangle(batch.old_logprobs),
        log_prob=torch.stack(logprobs),
        advantages=rectangle(batch.advantages),
        response_mask=rectangle(batch.loss_mask),
        loss_agg_mode=aggregation,
        config=config,
        rollout_is_weights=None if correction is None else rectangle(weights),
    )
    loss.backward()
    norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
    return float(loss.detach()), float(norm)


@pytest.mark.parametrize("correction", [None, CORRECTION], ids=["", "corrected"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", ["vanilla", "gpg", "geo_mean"])
def test_loss_and_gradient_are_those_of_a_direct_call(
    name: str, aggregation: str, correction: RolloutCorrection | None, alone: Any
) -> None:
    batch = random_batch(TURNS)
    loss, norm = _direct(build_tiny(0), batch, name, aggregation, correction)
    plan = make_plan(name, aggregation=aggregation, rollout_correction=correction)
    metrics = make_updater(rows=2).update(alone.begin_anew(rows=2), batch, plan).metrics
    assert metrics["actor/loss"] == pytest.approx(loss, rel=1e-5, abs=1e-5)
    assert metrics["actor/grad_norm"] == pytest.approx(norm, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", ["vanilla", "geo_mean"])
def test_beside_a_loss_of_ours_for_another_role_ranks_change_nothing(name: str, alone: Any, two_ranks: Any) -> None:
    batch = random_batch(TURNS, roles=("solver", "judge"))
    plan = make_plan({"solver": name, "judge": "ppo"}, kl=KlTerm(beta=0.1, estimator="k3"), entropy_coeff=0.1)
    expected = make_updater(rows=1).update(alone.begin_anew(rows=1), batch, plan).metrics
    metrics = make_updater(rows=2).update(two_ranks.begin_anew(rows=2), batch, plan).metrics
    assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert 0 < metrics["actor/pg_clipfrac"] < 1


def test_vanilla_with_clipping_as_ours_is_our_ppo(alone: Any) -> None:
    batch = random_batch(TURNS)
    ours = make_updater().update(alone.begin_anew(rows=1), batch, make_plan("ppo")).metrics
    of_verl = make_updater().update(alone.begin_anew(rows=1), batch, make_plan("vanilla")).metrics
    assert {name: of_verl[name] for name in ours} == pytest.approx(ours, rel=1e-5, abs=1e-5)


def test_elsewhere_they_are_refused() -> None:
    nothing = torch.zeros(0)
    inputs = LossInput(logprobs=nothing, old_logprobs=nothing, advantages=nothing, row_ids=nothing.long())
    with expect_error(LossError, "loss-not-supported", "'vanilla'"):
        VerlPolicyLoss("vanilla")(inputs, None)
