"""Columns of a batch against a naive computation: every row by itself, all logits, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from local_models import build_tiny, fill_columns, make_critic, make_plan, make_updater, plain_rows, random_batch

from rllm_core.contracts.backend import KlTerm
from rllm_core.data.batch import TokenBatch
from rllm_local.columns import ColumnFiller
from rllm_local.critic import Critic
from rllm_local.reference import Reference
from rllm_local.settings import CriticSection
from rllm_local.tree_attention import carry_trees, group_row_ends

MULTI_TURN = [[(5, 3), (2, 4)], [(1, 1)], [(30, 12), (1, 1), (4, 6)], [(3, 0), (2, 5)], [(8, 25)], [(2, 2)]]
"""(prompt, response) lengths of the turns of each trajectory."""
ALL = ("old_logprobs", "ref_logprobs", "values", "sum_pi_squared")


class Exact(torch.nn.Module):
    """A model whose logits are returned in float64, as it has computed them.

    In bfloat16 it computes exact attention, because other orders of sums round to other numbers.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> Any:
        if self.model.dtype == torch.bfloat16:
            length = inputs["input_ids"].shape[1]
            row = group_row_ends(np.arange(length)[None], np.array([0]), np.array([length]))
            inputs["attention_mask"] = carry_trees(self.model, row)
        output = self.model(**inputs)
        output.logits = output.logits.double()
        return output


@torch.no_grad()
def naive(model: Any, batch: TokenBatch, temperature: float, critic: Critic | None = None) -> dict[str, np.ndarray]:
    names = ("logprobs", "sum_pi_squared", "values", "entropies")
    columns = {name: np.zeros(len(batch.tokens), np.float64) for name in names}
    for place, table, logprobs, states in plain_rows(Exact(model), batch, temperature):
        columns["logprobs"][place] = logprobs
        columns["sum_pi_squared"][place] = (table.exp() ** 2).sum(1)
        columns["entropies"][place] = -(table.exp() * table).sum(1)
        if critic is not None:
            columns["values"][place] = states.double() @ critic.weight.double() / critic.width + critic.bias.double()
    return {name: column * batch.loss_mask for name, column in columns.items()}


@pytest.mark.parametrize(
    ("which", "temperature", "max_tokens", "rollouts"),
    [
        ("model", 0.5, 1, 1),
        ("model", 1.0, 10_000, 3),
        ("grouped_model", 0.5, 10_000, 1),
        ("grouped_model", 1.0, 1, 3),
        ("qwen_model", 0.5, 10_000, 3),
        ("bfloat16", 1.0, 1, 1),
    ],
)
def test_columns_are_those_of_every_token_by_itself(
    which: str, temperature: float, max_tokens: int, rollouts: int, request: pytest.FixtureRequest
) -> None:
    """A bfloat16 model rounds its logits and hidden states. Values computed from them are not rounded again."""
    model, other = None if which == "bfloat16" else request.getfixturevalue(which), build_tiny(9)
    if model is None:
        model, other = build_tiny(0).bfloat16(), other.bfloat16()
    batch, critic = random_batch(MULTI_TURN, rollouts=rollouts), make_critic(model)
    options = {"temperature": temperature, "max_tokens_per_microbatch": max_tokens}
    filled = fill_columns(model, batch, *ALL, critic=critic, reference=Reference(other), **options)
    expected, of_reference = naive(model, batch, temperature, critic), naive(other, batch, temperature)
    near = {"atol": 3e-6 if which == "bfloat16" else 2e-5, "rtol": 1e-5}
    np.testing.assert_allclose(filled.old_logprobs, expected["logprobs"], **near)
    np.testing.assert_allclose(filled.sum_pi_squared, expected["sum_pi_squared"], **near)
    np.testing.assert_allclose(filled.values, expected["values"], **near)
    np.testing.assert_allclose(filled.ref_logprobs, of_reference["logprobs"], **near)
    for name in ALL:
        column = getattr(filled, name)
        assert column.dtype == np.float32
        assert not column[~batch.loss_mask].any()
    if which == "bfloat16":
        plan = make_plan(kl=KlTerm(beta=0.1, estimator="k3"))
        metrics = make_updater(model, max_tokens_per_microbatch=1).update(filled, plan).metrics
        difference = (of_reference["logprobs"] - expected["logprobs"])[batch.loss_mask]
        assert metrics["actor/entropy"] == pytest.approx(expected["entropies"][batch.loss_mask].mean(), rel=1e-5)
        assert metrics["actor/kl_ref"] == pytest.approx((np.exp(difference) - 1 - difference).mean(), rel=1e-4)


def test_only_what_is_needed_is_computed(model: Any) -> None:
    """Without a gradient, and without traces in the model."""
    hooks = dict(model.get_output_embeddings()._forward_pre_hooks)
    parts = {"critic": make_critic(model), "reference": Reference(model)}
    filled = fill_columns(model, random_batch(MULTI_TURN), "sum_pi_squared", **parts)
    assert filled.sum_pi_squared is not None
    assert filled.ref_logprobs is filled.values is None
    assert fill_columns(model, random_batch(MULTI_TURN), "ref_logprobs", **parts).ref_logprobs is not None
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.get_output_embeddings()._forward_pre_hooks == hooks


def test_old_log_probs_equal_sampled_ones_unless_recomputed() -> None:
    """Without a model: none is asked."""
    batch = random_batch(MULTI_TURN)
    filler = ColumnFiller(None, temperature=1.0, max_tokens_per_microbatch=1, recompute_old_logprobs=False)
    assert filler.columns(batch, frozenset({"old_logprobs"}))["old_logprobs"] is batch.sampling_logprobs


def test_unknown_sampled_log_probs_are_computed_by_model(model: Any) -> None:
    batch = random_batch(MULTI_TURN)
    in_first_row = np.arange(len(batch.tokens)) < batch.row_offsets[1]
    unknown = np.where(in_first_row & batch.loss_mask, np.float32(np.nan), batch.sampling_logprobs)
    filler = ColumnFiller(model, temperature=0.5, max_tokens_per_microbatch=50, recompute_old_logprobs=False)
    old = filler.columns(batch.with_columns(sampling_logprobs=unknown), frozenset({"old_logprobs"}))["old_logprobs"]
    expected = np.where(in_first_row, naive(model, batch, 0.5)["logprobs"], batch.sampling_logprobs)
    np.testing.assert_allclose(old, expected, atol=2e-5)


def test_a_new_critic_says_0_everywhere(model: Any) -> None:
    critic = Critic(model, CriticSection())
    filled = fill_columns(model, random_batch(MULTI_TURN), "values", critic=critic)
    assert filled.values is not None
    assert not filled.values.any()
