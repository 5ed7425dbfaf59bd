"""The losses against their formulas, written down once more and differentiated by torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from rllm_tinker_server.losses import LOSSES, Targets, complete_config, find_loss
from rllm_tinker_server.messages import RequestError

Columns = dict[str, Tensor]
FORMULAS: dict[str, Callable[[Tensor, Columns, dict[str, float]], Tensor]] = {
    "cross_entropy": lambda logp, on, _: -(on["weights"] * logp).sum(),
    "importance_sampling": lambda logp, on, _: -((logp - on["logprobs"]).exp() * on["advantages"]).sum(),
    "ppo": lambda logp, on, config: (
        -torch.minimum(
            (logp - on["logprobs"]).exp() * on["advantages"],
            (logp - on["logprobs"]).exp().clamp(config["clip_low_threshold"], config["clip_high_threshold"])
            * on["advantages"],
        ).sum()
    ),
    "cispo": lambda logp, on, config: (
        -(
            (logp - on["logprobs"]).exp().clamp(config["clip_low_threshold"], config["clip_high_threshold"]).detach()
            * logp
            * on["advantages"]
        ).sum()
    ),
    "dro": lambda logp, on, config: (
        -(logp * on["advantages"] - 0.5 * config["beta"] * (logp - on["logprobs"]) ** 2).sum()
    ),
}


def _gspo(logp: Tensor, on: Columns, config: dict[str, float]) -> Tensor:
    """Return the loss of one example."""
    mean = (logp.detach() - on["logprobs"])[on["sequence_ratio_mask"] != 0].mean()
    ratio = (mean + logp - logp.detach()).exp()
    bounded = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    return -torch.minimum(ratio * on["advantages"], bounded * on["advantages"]).sum()


def _stable_reinforce(logp: Tensor, on: Columns, config: dict[str, float]) -> Tensor:
    weight = (logp - on["logprobs"]).exp().clamp(max=2.0).detach()
    kl = 0.5 * (logp - on["logprobs"]) ** 2
    return (on["sampled"] * (-weight * on["advantages"] * logp + config["kl_coeff"] * kl)).sum()


FORMULAS |= {"gspo": _gspo, "stable_reinforce": _stable_reinforce}
DEFAULTS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2, "beta": 0.05, "kl_coeff": 0.0}
OTHERS = {"clip_low_threshold": 0.95, "clip_high_threshold": 1.02, "beta": 0.7, "kl_coeff": 0.4}


def _targets(lengths: tuple[int, ...], seed: int = 0, spread: float = 0.3) -> Targets:
    generator = torch.Generator().manual_seed(seed)
    size = sum(lengths)
    logprobs = (-2 + torch.randn(size, generator=generator)).requires_grad_()
    mask = (torch.rand(size, generator=generator) < 0.5).float()
    mask[torch.tensor(lengths).cumsum(0) - 1] = 1
    return Targets(
        logprobs=logprobs,
        examples=torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
        inputs={
            "weights": torch.randn(size, generator=generator),
            "logprobs": logprobs.detach() + spread * torch.randn(size, generator=generator),
            "advantages": torch.randn(size, generator=generator),
            "sequence_ratio_mask": mask,
            "sampled": mask,
        },
    )


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("custom", [False, True])
def test_loss_has_value_and_gradient_of_its_formula(name: str, custom: bool) -> None:
    given = {key: OTHERS[key] for key in find_loss(name).config}
    config = complete_config(name, given if custom else {})
    assert config == (given if custom else {key: DEFAULTS[key] for key in given})
    lengths = (7, 1, 20)
    targets = _targets(lengths)
    losses = find_loss(name).function(targets, config)
    assert losses.shape == targets.logprobs.shape
    (gradient,) = torch.autograd.grad(losses.sum(), targets.logprobs)

    logprobs = targets.logprobs.detach().double().requires_grad_()
    expected = torch.zeros((), dtype=torch.float64)
    for example in range(len(lengths)):
        own = targets.examples == example
        columns = {key: column[own].double() for key, column in targets.inputs.items()}
        expected = expected + FORMULAS[name](logprobs[own], columns, dict(config))
    (expected_gradient,) = torch.autograd.grad(expected, logprobs)
    assert losses.detach().sum().item() == pytest.approx(expected.detach().item(), abs=1e-4)
    torch.testing.assert_close(gradient.double(), expected_gradient, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "cispo", "gspo", "stable_reinforce"])
def test_a_ratio_too_large_for_exp_stays_finite(name: str) -> None:
    targets = _targets((6,))
    targets.inputs["logprobs"].sub_(500)
    losses = find_loss(name).function(targets, complete_config(name, {}))
    assert torch.isfinite(losses).all()


@pytest.mark.parametrize("name", ["custom", "ppoo"])
def test_unknown_loss_is_rejected_with_known_names(name: str) -> None:
    with pytest.raises(RequestError, match=f"{name}.*cross_entropy, importance_sampling, ppo, cispo, dro"):
        find_loss(name)


def test_error_about_custom_loss_names_the_client_function() -> None:
    with pytest.raises(RequestError, match="forward_backward_custom"):
        find_loss("custom")


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("ppo", {"eps_clip": 0.2}, "'eps_clip'.*clip_low_threshold, clip_high_threshold"),
        ("cross_entropy", {"beta": 0.1}, "'beta'"),
        ("dro", {"beta": np.nan}, "beta.* nan"),
        ("dro", {"beta": -0.1}, "beta.* -0.1"),
        ("gspo", {"clip_low_threshold": 1.3}, "clip_low_threshold=1.3.*gspo.*clip_high_threshold=1.2"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name: str, config: dict[str, float], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        complete_config(name, config)
