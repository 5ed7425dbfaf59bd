"""What a loss is given by the local backend, and that cutting a batch up does not show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.loss import LossInput, LossPlugin
from rllm_core.contracts.params import NoParams
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_estimators.losses_covariance import clip_cov
from rllm_estimators.options import ClipCovParams
from rllm_local import tiny
from rllm_local.settings import TrainingSection
from rllm_local.update import Updater

LENGTHS = [(3, 9), (2, 5), (4, 1), (3, 12), (5, 7), (2, 3)]


def test_at_takes_every_column_and_keeps_the_seed() -> None:
    inputs = LossInput(
        logprobs=torch.arange(4.0, requires_grad=True),
        old_logprobs=torch.arange(4.0) + 10,
        advantages=torch.arange(4.0) + 20,
        row_ids=torch.arange(4),
        sampling_logprobs=torch.arange(4.0) + 30,
        seed=5,
    )
    part = inputs.at(torch.tensor([True, False, False, True]))
    columns = (part.logprobs, part.old_logprobs, part.advantages, part.row_ids, part.sampling_logprobs)
    assert [column.tolist() for column in columns if column is not None] == [
        [start, start + 3] for start in (0, 10, 20, 0, 30)
    ]
    assert part.logprobs.requires_grad
    assert part.ref_logprobs is None
    assert part.seed == 5


@pytest.fixture(scope="module")
def batch() -> TokenBatch:
    """Rows of two roles; every column has other numbers."""
    generator = np.random.default_rng(0)
    groups = {role: TrajectoryGroup(group_id=f"t:{role}", trajectories=[]) for role in ("solver", "judge")}
    for index, (prompt, response) in enumerate(LENGTHS):
        role = ("solver", "judge")[index % 2]
        trajectory = Trajectory(role, reward=0.0)
        logprobs = generator.normal(-4.2, 0.3, response).astype(np.float32)
        trajectory.add_step(generator.integers(3, 50, prompt).tolist(), generator.integers(3, 50, response), logprobs)
        groups[role].trajectories.append(trajectory)
    built = build_batch(list(groups.values()))

    def near(values: Any, by: float) -> Any:
        return ((values + by) * built.loss_mask).astype(np.float32)

    return built.with_columns(
        advantages=near(generator.normal(0, 1, len(built.tokens)), 0),
        old_logprobs=near(built.sampling_logprobs, 0.01),
        ref_logprobs=near(built.sampling_logprobs, 0.5),
    )


def update(batch: TokenBatch, losses: dict[str, tuple[Any, Any]], max_tokens: int, **settings: Any) -> Tensor:
    """The gradient of the last optimizer step."""
    model = tiny.build_model(len(tiny.build_tokenizer()), 0)
    section = TrainingSection(max_tokens_per_microbatch=max_tokens, max_grad_norm=1e9, **settings)
    updater = Updater(model, section, total_steps=9, temperature=1.0, max_response_length=20)
    choices = {}
    for role, (loss, params) in losses.items():
        plugin = LossPlugin(name="x", summary="", load_params=partial(type, params), load=lambda loss=loss: loss)
        choices[role] = PluginChoice(registered=Registered(plugin=plugin, distribution="t", version="0"), params=params)
    plan = UpdatePlan(global_step=0, losses=choices, aggregation="token-mean", entropy_coeff=0.0, seed=3)
    updater.update(batch, plan)
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def spy(seen: list[LossInput]) -> Callable[[LossInput, NoParams], Tensor]:
    def loss(inputs: LossInput, params: NoParams) -> Tensor:
        seen.append(inputs)
        return -inputs.logprobs

    return loss


def test_each_role_gets_its_own_tokens(batch: TokenBatch) -> None:
    seen: dict[str, list[LossInput]] = {"solver": [], "judge": []}
    update(batch, {role: (spy(parts), NoParams()) for role, parts in seen.items()}, 30, num_minibatches=1)
    row_of_token = np.repeat(np.arange(batch.n_rows), batch.row_lengths)
    for role, parts in seen.items():
        assert len(parts) > 1, "one micro-batch would prove little"
        rows: Sequence[int] = np.flatnonzero(batch.role == batch.roles.index(role)).tolist()
        assert sorted({int(row) for part in parts for row in part.row_ids}) == rows
        for part in parts:
            for row in part.row_ids.unique().tolist():
                inside, source = part.row_ids == row, (row_of_token == row) & batch.loss_mask
                for name in ("old_logprobs", "advantages", "sampling_logprobs", "ref_logprobs"):
                    assert getattr(part, name)[inside].tolist() == getattr(batch, name)[source].tolist(), name


def test_the_seed_is_one_per_optimizer_step(batch: TokenBatch) -> None:
    seen: list[LossInput] = []
    update(batch, dict.fromkeys(("solver", "judge"), (spy(seen), NoParams())), 30, num_minibatches=1, num_epochs=2)
    seeds = [part.seed for part in seen]
    half = len(seeds) // 2
    assert len(set(seeds[:half])) == len(set(seeds[half:])) == 1
    assert seeds[0] != seeds[-1]


def test_random_loss_ignores_the_cut_into_micro_batches(batch: TokenBatch) -> None:
    params = ClipCovParams(clip_cov_ratio=0.3, clip_cov_lb=0.0, clip_cov_ub=99.0, eps_clip=9.0)
    losses = dict.fromkeys(("solver", "judge"), (clip_cov, params))
    whole, cut, none = (
        update(batch, chosen, tokens, num_minibatches=1)
        for chosen, tokens in (
            (losses, 9999),
            (losses, 1),
            (dict.fromkeys(losses, (clip_cov, params.model_copy(update={"clip_cov_ratio": 0.0}))), 1),
        )
    )
    # Sums of float32 in another order; without the drawn tokens the gradient would differ by far more.
    torch.testing.assert_close(cut, whole, rtol=1e-3, atol=1e-6)
    assert not torch.allclose(none, whole, rtol=1e-2)
