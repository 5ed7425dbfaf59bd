"""The stages `distill` and `topk_kl`, which learn from a teacher."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rllm.builtin.distillation.by_source import list_teachers
from rllm.planning.plan import RunPlan
from rllm.planning.problem import Problem, refused
from rllm_core.contracts.params import Params
from rllm_core.contracts.stage import StageContext
from rllm_core.contracts.teacher import DistributionTeacher, Teacher
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch, TokenTargets
from rllm_core.errors import PluginError, failures_as
from rllm_core.pipeline.metrics import advantage_metrics


class DistillParams(Params):
    """Options of the stage ``distill``."""

    weight: float = Field(1.0, gt=0)
    """Factor of the teacher's part of each advantage."""


class TopkKlParams(Params):
    """Options of the stage ``topk_kl``."""

    k: int | None = Field(20, gt=0)
    """Number of the teacher's likeliest tokens at each position. null: the whole vocabulary, which only the teacher
    `model` has."""
    beta: float = Field(0.5, ge=0, le=1)
    """The divergence. 0: forward KL (teacher to policy). 1: reverse KL (policy to teacher). Between: generalized
    Jensen-Shannon divergence."""
    weight: float = Field(1.0, gt=0)
    """Factor of the mean divergence in the loss."""


class Distill:
    """Adds ``weight * (log p_teacher - log p)`` to the advantage of each sampled token.

    A loss with an importance ratio then follows the gradient of the reverse KL divergence from policy to teacher.
    p is the policy at the start of the update (`TokenBatch.old_logprobs`). Advantages start at 0 if no earlier stage
    estimated them. Formula: Agarwal et al., On-Policy Distillation of Language Models, 2024, with the gradient of a
    single token's divergence, as in the Tinker cookbook.
    """

    def __init__(self, context: StageContext, params: DistillParams) -> None:
        self._teacher = context.teacher
        self._weight = params.weight

    async def __call__(self, step: TrainStep) -> None:
        assert self._teacher is not None, "the plan has a teacher"
        batch = step.filled_batch
        assert batch.old_logprobs is not None
        logprobs = await compute_teacher_logprobs(self._teacher, batch)
        gap = np.where(batch.loss_mask, logprobs - batch.old_logprobs, np.float32(0))
        before = np.float32(0) if batch.advantages is None else batch.advantages
        step.batch = batch.with_columns(advantages=(before + np.float32(self._weight) * gap).astype(np.float32))
        # The record would otherwise expect the values of the estimator that came before.
        names = step.estimators or ("",) * len(batch.groups)
        step.estimators = tuple(f"{name} + distill".removeprefix(" + ") for name in names)
        if batch.loss_mask.any():
            step.metrics["distill/kl"] = -float(gap[batch.loss_mask].mean(dtype=np.float64))
        step.metrics["distill/tokens"] = float(batch.loss_mask.sum())
        step.metrics |= advantage_metrics(step.batch)


async def compute_teacher_logprobs(teacher: Teacher, batch: TokenBatch) -> NDArray[np.float32]:
    """Return the teacher's log-probs, (n_token,) in nats, after checking them.

    Raises:
        PluginError: the teacher failed, or a sampled token has no finite log-prob.
    """
    who = f"Teacher {type(teacher).__name__}"
    with failures_as(PluginError, who):
        logprobs = np.asarray(await teacher.logprobs(batch), np.float32)
    if logprobs.shape != batch.tokens.shape:
        raise PluginError(
            "bad-teacher-result",
            f"{who} returned an array of shape {logprobs.shape} for {len(batch.tokens)} tokens.",
            "Return one log-prob for each token of the batch.",
        )
    if unusable := int((~np.isfinite(logprobs[batch.loss_mask])).sum()):
        raise PluginError(
            "bad-teacher-result",
            f"{who} returned no finite log-prob for {unusable} of {int(batch.loss_mask.sum())} sampled tokens.",
            "Return finite log-probs in nats for all tokens with `TokenBatch.loss_mask`.",
        )
    return logprobs


class TopkKl:
    """Adds ``weight`` times the mean divergence from the teacher to the loss of each optimizer step.

    Advantages do not change, and are 0 if no earlier stage estimated them. Agarwal et al., On-Policy Distillation
    of Language Models, 2024, arXiv:2306.13649 (GKD).
    """

    def __init__(self, context: StageContext, params: TopkKlParams) -> None:
        self._teacher = context.teacher
        self._params = params

    async def __call__(self, step: TrainStep) -> None:
        teacher, batch, params = self._teacher, step.filled_batch, self._params
        assert isinstance(teacher, DistributionTeacher), "the plan has a teacher with distributions"
        ids, logprobs = await compute_teacher_distributions(teacher, batch, params.k)
        targets = TokenTargets(ids=ids, logprobs=logprobs, weight=params.weight, beta=params.beta)
        step.batch = replace(batch, targets=targets)
        if batch.advantages is None:
            step.batch = step.batch.with_columns(advantages=np.zeros(len(batch.tokens), np.float32))
            step.estimators = ("topk_kl",) * len(batch.groups)
            step.metrics |= advantage_metrics(step.batch)
        step.metrics["distill/tokens"] = float(len(ids))
        if len(ids):
            step.metrics["distill/teacher_mass"] = float(np.exp(logprobs.astype(np.float64)).sum(axis=1).mean())


async def compute_teacher_distributions(
    teacher: DistributionTeacher, batch: TokenBatch, k: int | None
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the teacher's ids and log-probs, (n_sampled, k) each, after checking them.

    Raises:
        PluginError: the teacher failed, or its result is not a table of finite log-probs.
    """
    who = f"Teacher {type(teacher).__name__}"
    with failures_as(PluginError, who):
        found = await teacher.top_logprobs(batch, k)
        ids, logprobs = np.asarray(found[0], np.int32), np.asarray(found[1], np.float32)
    rows = int(batch.loss_mask.sum())
    if ids.shape != logprobs.shape or ids.ndim != 2 or len(ids) != rows:
        raise PluginError(
            "bad-teacher-result",
            f"{who} returned arrays of shapes {ids.shape} and {logprobs.shape} for {rows} sampled tokens.",
            "Return two arrays with one row for each sampled token and k columns.",
        )
    if unusable := int((~np.isfinite(logprobs)).any(axis=1).sum()):
        raise PluginError(
            "bad-teacher-result",
            f"{who} returned no finite log-probs for {unusable} of {rows} sampled tokens.",
            "Return finite log-probs in nats for all k tokens.",
        )
    return ids, logprobs


KEY = "rllm.teacher"


def check_topk_teachers(plan: RunPlan, params: TopkKlParams) -> Iterator[Problem]:
    """Check that the teachers return distributions."""
    from rllm.builtin.distillation.server import ServerParams  # imports httpx

    for part in () if plan.teacher is None else list_teachers(plan.teacher):
        if not part.plugin.distributions:
            yield refused(
                "teacher-without-distributions",
                KEY,
                f"Teacher {part.plugin.name!r} scores only the sampled tokens, and stage topk_kl needs distributions.",
                "Choose teacher `model` or `server`, or distill with --objective opd.",
            )
        if params.k is None and isinstance(part.params, ServerParams):
            yield refused(
                "teacher-without-vocabulary",
                KEY,
                "Option k of stage topk_kl is null, and a server returns only its likeliest tokens.",
                "Set option k of stage topk_kl to a number, such as 20.",
            )
