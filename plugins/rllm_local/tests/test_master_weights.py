"""Training of a bfloat16 model: AdamW updates float32 masters, which are rounded into the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from local_models import build_tiny, make_plan, make_updater, random_batch

from rllm_local.master_weights import MasterWeights
from rllm_local.settings import TrainingSection
from rllm_local.update import Updater

ROWS = [(2 + row, 1 + row % 4) for row in range(9)]
BF16 = torch.bfloat16


def _copies(tensors: Any) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def test_master_weights_follow_float32_adamw_with_equal_gradients() -> None:
    model = build_tiny(0)
    copies = [torch.nn.Parameter(weight) for weight in _copies(model.parameters())]
    section = TrainingSection(
        learning_rate=1e-4, weight_decay=0.1, beta2=0.99, max_grad_norm=0.01, num_minibatches=2, num_epochs=2
    )
    expected = torch.optim.AdamW(copies, lr=1e-4, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1, fused=True)
    updater = Updater(
        model,
        section,
        total_steps=10,
        temperature=1.0,
        max_response_length=50,
        masters=MasterWeights.from_float32(model, BF16),
    )
    steps: list[list[torch.Tensor]] = []
    updater.optimizer.register_step_pre_hook(
        lambda *_: steps.append(_copies(master.grad for master in updater.masters))
    )
    for step in range(5):
        updater.update(random_batch(ROWS, seed=step), make_plan(global_step=step, seed=step))
    assert len(steps) == 20
    for gradients in steps:
        norm = torch.nn.utils.get_total_norm(gradients)
        assert norm.dtype == torch.float32
        assert float(norm) == pytest.approx(0.01, rel=1e-4), "scaled down to the limit"
        for copy, gradient in zip(copies, gradients, strict=True):
            copy.grad = gradient
        expected.step()
    assert all(torch.equal(*pair) for pair in zip(updater.masters, copies, strict=True))
    for parameter, copy in zip(model.parameters(), copies, strict=True):
        assert parameter.dtype == BF16
        assert torch.equal(parameter, copy.to(BF16))
    for state in updater.optimizer.state.values():
        assert {state["exp_avg"].dtype, state["exp_avg_sq"].dtype} == {torch.float32}


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    """In bfloat16, 256 + 1 is 256."""
    model = torch.nn.Linear(3, 1, bias=False).to(BF16)
    masters = MasterWeights(model)
    (master,) = masters
    for size in [256.0, *[1.0] * 100]:
        model(torch.full((1, 3), size, dtype=BF16)).sum().backward()
    assert model.weight.grad is None
    assert master.grad is not None
    assert master.grad.tolist() == [[356.0] * 3]


def test_a_float32_model_has_no_copies(model: Any) -> None:
    masters = MasterWeights(model)
    assert all(master is parameter for master, parameter in zip(masters, model.parameters(), strict=True))
    assert masters.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float32, 16), (BF16, 18)])
def test_memory_per_parameter_is_what_the_documentation_says(dtype: torch.dtype, expected: int) -> None:
    model = build_tiny(0).to(dtype)
    updater = make_updater(model)
    updater.update(random_batch(ROWS), make_plan())
    moments = (state[name] for state in updater.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))
    weights = [*model.parameters(), *updater.masters]
    held = [*weights, *(weight.grad for weight in weights if weight.grad is not None), *moments]
    size = sum({tensor.data_ptr(): tensor.nbytes for tensor in held}.values())
    assert size == expected * sum(parameter.numel() for parameter in model.parameters())


def test_master_weights_start_as_exact_float32_weights() -> None:
    exact = _copies(build_tiny(0).parameters())
    model = build_tiny(0)
    masters = MasterWeights.from_float32(model, BF16)
    assert all(torch.equal(*pair) for pair in zip(masters, exact, strict=True))
    assert not torch.equal(next(model.parameters()).float(), exact[0])


def test_parameters_that_are_not_trained_have_no_master() -> None:
    model = build_tiny(0).to(BF16)
    model.model.embed_tokens.requires_grad_(False)
    names = {name for name, _ in MasterWeights(model).named_parameters()}
    assert names == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert "model.embed_tokens.weight" not in names
