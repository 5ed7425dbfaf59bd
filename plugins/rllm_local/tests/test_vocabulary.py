"""Log-probs and entropies in chunks against the plain computation, values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from local_models import build_tiny, random_batch

from rllm_local import vocabulary
from rllm_local.logprobs import TokenOutputs, token_outputs
from rllm_local.prefix_trees import micro_batches
from rllm_local.vocabulary import ChunkedOutputs, Distribution, chunked_outputs

TOKENS, WIDTH, VOCABULARY = 23, 12, 50


@pytest.fixture
def few_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of six tokens at most, of this vocabulary."""
    monkeypatch.setattr(vocabulary, "CHUNK", 6 * VOCABULARY + 7)


def _head(seed: int, *, bias: bool = True, dtype: torch.dtype = torch.float64) -> torch.nn.Linear:
    torch.manual_seed(seed)
    return torch.nn.Linear(WIDTH, VOCABULARY, bias=bias, dtype=dtype)


def _plain(head: torch.nn.Linear, hidden: torch.Tensor, targets: torch.Tensor, temperature: float) -> TokenOutputs:
    distribution = torch.log_softmax(head(hidden) / temperature, dim=-1)
    logprobs = distribution.gather(1, targets[:, None])[:, 0]
    entropies = -(distribution.exp() * distribution).sum(dim=-1)
    return TokenOutputs(distribution, logprobs, entropies, hidden, torch.arange(len(targets)))


def _in_chunks(
    head: torch.nn.Linear, hidden: torch.Tensor, targets: torch.Tensor, temperature: float
) -> ChunkedOutputs:
    return chunked_outputs(head, hidden, targets, torch.arange(len(targets)), temperature)


def _whole_outputs(
    head: torch.nn.Linear, hidden: torch.Tensor, targets: torch.Tensor, temperature: float
) -> TokenOutputs:
    outputs = Distribution.apply(head(hidden), targets, temperature)
    return TokenOutputs(*outputs, hidden, torch.arange(len(targets)))


@pytest.mark.usefixtures("few_logits")
@pytest.mark.parametrize("ours", [_in_chunks, _whole_outputs])
@pytest.mark.parametrize(
    ("temperature", "weights", "bias"),
    [(0.5, (1.0, 0.0), True), (1.0, (0.0, 1.0), False), (2.0, (0.7, -0.3), True), (0.5, (0.7, -0.3), False)],
)
def test_values_and_gradients_equal_plain_ones(
    ours: Callable[..., Any], temperature: float, weights: tuple[float, float], bias: bool
) -> None:
    generator = torch.Generator().manual_seed(3)
    hidden = (3 * torch.randn(TOKENS, WIDTH, generator=generator)).requires_grad_()
    targets = torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)
    scale = torch.randn(TOKENS, generator=generator)
    results = []
    for compute, dtype in ((ours, torch.float32), (_plain, torch.float64)):
        head = _head(1, bias=bias, dtype=torch.float64).to(dtype)
        outputs = compute(head, hidden.to(dtype), targets, temperature)
        loss = sum(
            (weight * scale.to(dtype) * values).sum()
            for weight, values in zip(weights, (outputs.logprobs, outputs.entropies()), strict=True)
            if weight
        )
        gradients = torch.autograd.grad(loss, [hidden, *head.parameters()])
        results.append([outputs.logprobs, outputs.entropies(), outputs.sum_pi_squared(), *gradients])
    for found, plain in zip(*results, strict=True):
        assert float((found.detach().double() - plain.detach()).norm() / plain.detach().norm()) < 1e-6


@pytest.mark.parametrize("compute", [_in_chunks, _whole_outputs])
def test_gradients_of_other_tokens_equal_plain_ones(compute: Callable[..., Any]) -> None:
    ids = torch.randint(0, VOCABULARY, (TOKENS, 3), generator=torch.Generator().manual_seed(4))
    gradients = []
    for each, dtype in ((compute, torch.float32), (_plain, torch.float64)):
        hidden = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(3)).to(dtype).requires_grad_()
        head = _head(1, dtype=torch.float64).to(dtype)
        outputs = each(head, hidden, ids[:, 0], 0.7)
        loss = (outputs.of_ids(ids) * torch.arange(3)).sum() + outputs.logprobs.sum()
        gradients.append(torch.autograd.grad(loss, hidden)[0].double())
    assert float((gradients[0] - gradients[1]).norm() / gradients[1].norm()) < 1e-6


@pytest.mark.usefixtures("few_logits")
def test_gradient_works_twice_and_skips_frozen_weights() -> None:
    head = _head(0, dtype=torch.float32).requires_grad_(False)
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
    outputs = _in_chunks(head, hidden, torch.zeros(TOKENS, dtype=torch.int64), 1.0)
    first = torch.autograd.grad(outputs.logprobs.sum(), hidden, retain_graph=True)[0]
    second = torch.autograd.grad(outputs.logprobs.sum(), hidden)[0]
    assert torch.equal(first, second)
    assert head.weight.grad is None


@pytest.mark.usefixtures("few_logits")
def test_gradients_in_bfloat16_are_those_of_one_sum() -> None:
    hidden = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
    targets = torch.arange(TOKENS)
    gradients = []
    for compute in (_in_chunks, _plain):
        head = _head(2).bfloat16()
        compute(head, hidden, targets, 1.0).logprobs.float().sum().backward()
        gradients.append(head.weight.grad.float())
    assert float((gradients[0] - gradients[1]).norm() / gradients[1].norm()) < 0.01


@pytest.mark.usefixtures("few_logits")
def test_no_tensor_contains_all_logits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = vocabulary._log_distribution

    def noting(hidden: torch.Tensor, *arguments: Any) -> torch.Tensor:
        made.append(len(hidden))
        return real(hidden, *arguments)

    monkeypatch.setattr(vocabulary, "_log_distribution", noting)
    kept: list[torch.Size] = []
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.shape) or tensor, lambda kept: kept
    ):
        outputs = _in_chunks(_head(0, dtype=torch.float32), hidden, torch.arange(TOKENS), 1.0)
        outputs.logprobs.sum().backward()
    assert made == [6, 6, 6, 5] * 2
    assert all(shape.numel() < TOKENS * VOCABULARY for shape in kept if shape != (VOCABULARY, WIDTH))


@pytest.mark.parametrize("name", ["model", "grouped_model", "qwen_model"])
def test_a_model_gives_the_same_outputs_in_chunks(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = request.getfixturevalue(name)
    batch = random_batch([[(5, 3), (2, 4)], [(1, 1)], [(30, 12), (1, 1), (4, 6)], [(8, 25)]])
    (part,) = micro_batches(batch, np.arange(batch.n_rows), 10_000, torch.device("cpu"))
    whole = token_outputs(model, part, 0.7)
    monkeypatch.setattr(vocabulary, "CHUNK", 700)
    chunked = token_outputs(model, part, 0.7)
    assert isinstance(whole, TokenOutputs)
    assert isinstance(chunked, ChunkedOutputs)
    for ours, plain in (
        (chunked.logprobs, whole.logprobs),
        (chunked.hidden_states, whole.hidden_states),
        (chunked.entropies(), whole.entropies()),
        (chunked.sum_pi_squared(), whole.sum_pi_squared()),
    ):
        np.testing.assert_allclose(ours.detach().numpy(), plain.detach().numpy(), atol=1e-5, rtol=1e-5)


def test_logits_changed_after_output_layer_are_not_chunked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build_tiny(0)
    forward = model.forward

    def cap_logits(*arguments: Any, **options: Any) -> Any:
        output = forward(*arguments, **options)
        output.logits = 3 * torch.tanh(output.logits / 3)
        return output

    model.forward = cap_logits
    monkeypatch.setattr(vocabulary, "CHUNK", 700)
    batch = random_batch([(5, 30), (8, 25)])
    (part,) = micro_batches(batch, np.arange(2), 10_000, torch.device("cpu"))
    outputs = token_outputs(model, part, 1.0)
    assert isinstance(outputs, TokenOutputs)
