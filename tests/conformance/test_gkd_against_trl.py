"""Distillation from a teacher's distributions: losses and gradients are TRL's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import peers
import pytest
import torch
from close import assert_close
from local_models import gradient_of, make_plan, make_updater
from torch import Tensor

from rllm.builtin.distillation.stages import TopkKl, TopkKlParams
from rllm_backend_kit.loss import generalized_jsd, with_tail
from rllm_core.contracts.teacher import TeacherSetup
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Step, Trajectory, TrajectoryGroup
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.seeding import derive_seed
from rllm_local import tiny
from rllm_local.scoring_models import TeacherModelParams
from rllm_local.teacher import ModelTeacher
from rllm_plugin_kit import stage_context
from rllm_plugin_kit.fakes import FakeBackend

TRL = peers.trl_gkd()
BETAS = [0.0, 0.1, 0.5, 0.9, 1.0]


def tables(n: int = 40, vocabulary: int = 500) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (3 * torch.randn(n, vocabulary, generator=generator, dtype=torch.float64) for _ in range(2))
    return student.requires_grad_(), teacher


def gradient(loss: Tensor, by: Tensor) -> Tensor:
    return torch.autograd.grad(loss, by, retain_graph=True)[0]


@pytest.mark.parametrize("k", [None, 10])
@pytest.mark.parametrize("beta", BETAS)
def test_divergence_is_trls(beta: float, k: int | None) -> None:
    """Of the whole vocabulary, or of the likeliest tokens and the rest."""
    student, teacher = tables()
    logprobs, targets = student.log_softmax(-1), teacher.log_softmax(-1)
    if k is None:
        ours = generalized_jsd(logprobs, targets, beta).mean()
        labels = torch.zeros(1, len(student), dtype=torch.int64)
        theirs = TRL.generalized_jsd(student[None], teacher[None], labels=labels, beta=beta)
    else:
        targets, ids = targets.topk(k)
        logprobs = logprobs.gather(1, ids)
        ours = generalized_jsd(with_tail(logprobs), with_tail(targets), beta).mean()
        theirs = TRL.compute_divergence(TRL.add_tail_bucket(logprobs), TRL.add_tail_bucket(targets), beta).mean()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    torch.testing.assert_close(gradient(ours, student), gradient(theirs, student), rtol=0, atol=1e-6)


def a_batch() -> TokenBatch:
    """Rows of different lengths of the model's tokens."""
    generator = np.random.default_rng(0)
    groups = []
    for number, (prompt, response) in enumerate([(4, 6), (9, 2), (1, 12)]):
        ids = generator.integers(0, 60, prompt + response)
        trajectory = Trajectory("agent", [Step(ids[:prompt], ids[prompt:], np.full(response, -1.0))])
        groups.append(TrajectoryGroup(group_id=f"{number}:agent", trajectories=[trajectory]))
    return build_batch(groups)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_update_with_a_teacher_is_trls(beta: float) -> None:
    """The teacher is `tiny` with the weights of a run with seed 1. TRL receives both models' logits."""
    tokenizer = tiny.build_tokenizer()
    model, other, teacher = (tiny.build_model(len(tokenizer), derive_seed(seed, "model")) for seed in (0, 0, 1))
    renderer = TemplateRenderer(tokenizer, [tokenizer.eos_token_id])
    setup = TeacherSetup(backend=FakeBackend(), renderer=renderer, temperature=1.0, seed=1)
    step = TrainStep(global_step=0, epoch=0, total_steps=1, tasks=[])
    step.batch = a_batch()
    stage = TopkKl(
        stage_context(teacher=ModelTeacher(TeacherModelParams(path="tiny"), setup)), TopkKlParams(k=None, beta=beta)
    )
    asyncio.run(stage(step))
    batch = replace(step.filled_batch, old_logprobs=step.filled_batch.sampling_logprobs)
    plan = make_plan("importance_sampling", batch.roles, aggregation="token-mean")
    updater = make_updater(model, learning_rate=1e-12, max_tokens_per_microbatch=20)
    found = updater.update(batch, plan)
    student, labels = padded_logits(other, batch)
    expected = TRL.generalized_jsd(student, padded_logits(teacher, batch)[0].detach(), labels=labels, beta=beta)
    expected.backward()
    assert found.metrics["actor/target_divergence"] == pytest.approx(expected.item(), rel=0, abs=1e-6)
    assert_close(gradient_of(model), gradient_of(other), [gradient_of(other)], relative=5e-6)


def padded_logits(model: Any, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Logits before each token but the first, and TRL's labels: -100 for tokens that were not sampled."""
    ends = batch.row_offsets[1:-1]
    width = int(batch.row_lengths.max())
    ids, labels = torch.zeros(batch.n_rows, width, dtype=torch.int64), torch.full((batch.n_rows, width), -100)
    for row, (tokens, sampled) in enumerate(
        zip(np.split(batch.tokens, ends), np.split(batch.loss_mask, ends), strict=True)
    ):
        ids[row, : len(tokens)] = torch.from_numpy(tokens.astype(np.int64))
        labels[row, : len(tokens)] = torch.from_numpy(np.where(sampled, tokens, -100).astype(np.int64))
    return model(input_ids=ids).logits[:, :-1], labels[:, 1:]
