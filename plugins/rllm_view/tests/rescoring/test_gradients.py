"""Losses at ratio 1: the weight of every token in the gradient is known in closed form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from expecting import expect_error

from rllm_core.contracts.loss import LossInput, LossPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.errors import ConfigError, LossError, RolloutError
from rllm_core.plugins.registry import Registry
from rllm_view.rescoring.rescore import Rescored
from rllm_view.rescoring.scores import LossTally


@pytest.fixture
def tallies(rescored: Callable[..., Rescored], keep: Callable[..., Path]) -> Callable[..., dict[str, LossTally]]:
    """By loss, for two attempts of two tokens each, with advantages -1 and 1."""

    def make(*losses: Any, rewards: tuple[float, ...] = (0, 1), **options: Any) -> dict[str, LossTally]:
        keep(0, {"t": rewards}, **options)
        return {loss: tally for (_, _, loss), tally in rescored(losses=losses).losses.items()}

    return make


def _offer(registry: Registry, name: str, function: Any, needs: frozenset[str] = frozenset()) -> None:
    registry.add(LossPlugin(name=name, summary="For tests.", params=NoParams, load=lambda: function, needs=needs))


@pytest.mark.parametrize("loss", ["ppo", "importance_sampling", "reinforce"])
def test_where_an_update_begins_a_tokens_gradient_is_its_advantage(tallies: Any, loss: str) -> None:
    tally = tallies(loss)[loss]
    assert tally.tokens == 4
    assert tally.mean_gradient == pytest.approx(1, abs=1e-5)
    assert (tally.zero, tally.silenced) == (0, 0)


def test_the_value_is_the_aggregated_loss(tallies: Any) -> None:
    found = tallies("importance_sampling", "reinforce", lengths={"t": [1, 3]})
    # token-mean of -A: (1 - 3) / 4; of -A logprob: -(1 * (-1 * -1) + sum of logprobs -1, -0.75, -0.5) / 4
    assert found["importance_sampling"].loss == pytest.approx((1 - 3) / 4, abs=1e-5)
    assert found["reinforce"].loss == pytest.approx((-1 + 2.25) / 4, abs=1e-5)


def test_tokens_without_signal_have_no_gradient_and_are_not_silenced(tallies: Any) -> None:
    tally = tallies("ppo", rewards=(1, 1))["ppo"]
    assert (tally.zero, tally.silenced) == (4, 0)


def test_tokens_that_a_loss_masks_are_silenced(tallies: Any, registry: Registry) -> None:
    def masks_bad(inputs: LossInput, params: NoParams) -> torch.Tensor:
        return -inputs.advantages.clamp(min=0) * inputs.logprobs

    _offer(registry, "masks_bad", masks_bad)
    tally = tallies("masks_bad")["masks_bad"]
    assert (tally.zero, tally.silenced) == (2, 2)


def test_a_loss_without_a_gradient_is_refused_as_in_training(tallies: Any, registry: Registry) -> None:
    _offer(registry, "still", lambda inputs, params: -inputs.advantages)
    with expect_error(LossError, "loss-without-gradient", "'still'"):
        tallies("still")


def test_a_loss_of_the_wrong_shape_is_refused(tallies: Any, registry: Registry) -> None:
    _offer(registry, "mean", lambda inputs, params: inputs.logprobs.mean())
    with expect_error(LossError, "bad-loss-result", "'agent'"):
        tallies("mean")


def test_a_loss_that_needs_a_model_is_refused(tallies: Any, registry: Registry) -> None:
    _offer(registry, "hungry", None, frozenset({"ref_logprobs"}))
    with expect_error(ConfigError, "missing-estimator-input", "ref_logprobs"):
        tallies("hungry")


def test_losses_cannot_be_compared_on_tokens_without_a_log_prob_and_advantages_can(
    rescored: Callable[..., Rescored], keep: Callable[..., Path]
) -> None:
    keep(0, {"t": (0, 1)}, logprobs_known=False)
    assert rescored().groups
    with expect_error(RolloutError, "missing-logprobs", "`rllm rescore --loss`"):
        rescored(losses=["ppo"])


def test_roles_have_losses_of_their_own_that_add_up(
    rescored: Callable[..., Rescored], keep: Callable[..., Path]
) -> None:
    keep(0, {"t": [0, 1]}, roles=("solver", "judge"))
    losses = rescored(losses=["importance_sampling"]).losses
    assert [role for role, _, _ in losses] == ["solver", "judge"]
    assert sum(tally.tokens for tally in losses.values()) == 8
