"""What a bfloat16 model learns: float32 masters, moved by AdamW and rounded into the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rllm_core.batch import TokenBatch
from rllm_core.contracts.backend import UpdatePlan
from rllm_local.masters import Masters
from rllm_local.settings import TrainingSection
from rllm_local.update import Updater

ROWS = [(2 + row, 1 + row % 4) for row in range(9)]
BF16 = torch.bfloat16


def _copies(tensors: Any) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def test_masters_move_as_float32_weights_under_torchs_adamw_given_the_same_gradients(
    build_tiny: Callable[[int], Any], random_batch: Callable[..., TokenBatch], make_plan: Callable[..., UpdatePlan]
) -> None:
    model = build_tiny(0)
    copies = [torch.nn.Parameter(weight) for weight in _copies(model.parameters())]
    section = TrainingSection(
        learning_rate=1e-4, weight_decay=0.1, beta2=0.99, max_grad_norm=0.01, num_minibatches=2, num_epochs=2
    )
    expected = torch.optim.AdamW(copies, lr=1e-4, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
    updater = Updater(
        model,
        section,
        total_steps=10,
        temperature=1.0,
        max_response_length=50,
        masters=Masters.of_float32(model, BF16),
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


def test_small_updates_add_up_as_they_do_in_float32(
    build_tiny: Callable[[int], Any],
    random_batch: Callable[..., TokenBatch],
    make_plan: Callable[..., UpdatePlan],
    make_updater: Callable[..., Updater],
) -> None:
    """At the default learning rate nearly every step is below the distance of two bfloat16 numbers."""
    moved, distance = {}, {}
    for dtype in (torch.float32, BF16):
        model = build_tiny(0).to(BF16).to(dtype)
        updater = make_updater(model, learning_rate=2e-5)
        before = torch.cat([master.flatten() for master in _copies(updater.masters)])
        for step in range(20):
            updater.update(random_batch(ROWS, seed=step), make_plan(global_step=step, seed=step))
        after = torch.cat([master.detach().flatten() for master in updater.masters])
        moved[dtype] = float((before != after).float().mean())
        distance[dtype] = after - before
        if dtype == BF16:
            rounded = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
            assert torch.equal(rounded, after.to(BF16))
            assert float((rounded != before.to(BF16)).float().mean()) > 0.05
    assert moved[BF16] == pytest.approx(moved[torch.float32], abs=0.01)
    assert moved[BF16] > 0.9
    assert float(torch.cosine_similarity(distance[BF16], distance[torch.float32], dim=0)) > 0.95


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    """In bfloat16, 256 + 1 is 256."""
    model = torch.nn.Linear(3, 1, bias=False).to(BF16)
    masters = Masters(model)
    (master,) = masters
    for size in [256.0, *[1.0] * 100]:
        model(torch.full((1, 3), size, dtype=BF16)).sum().backward()
    assert model.weight.grad is None
    assert master.grad is not None
    assert master.grad.tolist() == [[356.0] * 3]


def test_a_float32_model_has_no_copies(model: Any) -> None:
    masters = Masters(model)
    assert all(master is parameter for master, parameter in zip(masters, model.parameters(), strict=True))
    assert masters.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float32, 16), (BF16, 18)])
def test_memory_per_parameter_is_what_the_documentation_says(
    dtype: torch.dtype,
    expected: int,
    build_tiny: Callable[[int], Any],
    random_batch: Callable[..., TokenBatch],
    make_plan: Callable[..., UpdatePlan],
    make_updater: Callable[..., Updater],
) -> None:
    model = build_tiny(0).to(dtype)
    updater = make_updater(model)
    updater.update(random_batch(ROWS), make_plan())
    moments = (state[name] for state in updater.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))
    weights = [*model.parameters(), *updater.masters]
    held = [*weights, *(weight.grad for weight in weights if weight.grad is not None), *moments]
    size = sum({tensor.data_ptr(): tensor.nbytes for tensor in held}.values())
    assert size == expected * sum(parameter.numel() for parameter in model.parameters())


def test_masters_begin_with_every_bit_of_the_float32_weights(build_tiny: Callable[[int], Any]) -> None:
    exact = _copies(build_tiny(0).parameters())
    model = build_tiny(0)
    masters = Masters.of_float32(model, BF16)
    assert all(torch.equal(*pair) for pair in zip(masters, exact, strict=True))
    assert not torch.equal(next(model.parameters()).float(), exact[0])


def test_parameters_that_are_not_trained_have_no_master(build_tiny: Callable[[int], Any]) -> None:
    model = build_tiny(0).to(BF16)
    model.model.embed_tokens.requires_grad_(False)
    names = {name for name, _ in Masters(model).named()}
    assert names == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert "model.embed_tokens.weight" not in names


def test_numbers_about_a_bfloat16_model_are_those_of_its_logits_in_float64(
    build_tiny: Callable[[int], Any], random_batch: Callable[..., TokenBatch], fill_columns: Callable[..., TokenBatch]
) -> None:
    """The model rounds its logits; nothing that is computed of them may round again."""
    model = build_tiny(0).to(BF16)
    batch = random_batch(ROWS)
    found = fill_columns(model, batch, "sum_pi_squared", max_tokens_per_microbatch=1)
    assert found.old_logprobs is not None
    assert found.sum_pi_squared is not None
    for row in range(batch.n_rows):
        start, end = int(batch.row_offsets[row]), int(batch.row_offsets[row + 1])
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        with torch.inference_mode():
            logits = model(input_ids=ids[None, :-1], use_cache=False).logits[0]
        assert logits.dtype == BF16
        exact = logits.double().log_softmax(-1)
        places = batch.loss_mask[start + 1 : end]
        logprobs = exact.gather(1, ids[1:, None])[:, 0].numpy()
        squares = exact.exp().square().sum(-1).numpy()
        np.testing.assert_allclose(found.old_logprobs[start + 1 : end][places], logprobs[places], atol=2e-6)
        np.testing.assert_allclose(found.sum_pi_squared[start + 1 : end][places], squares[places], rtol=1e-5)
