"""The stage `distill`: advantages from a teacher's log-probs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rllm.builtin.distillation.options import DistillParams
from rllm_core.contracts.stage_context import StageContext
from rllm_core.contracts.teacher import Teacher
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import PluginError, failures_as
from rllm_core.pipeline.metrics import advantage_metrics


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
        logprobs = await teacher_logprobs(self._teacher, batch)
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


async def teacher_logprobs(teacher: Teacher, batch: TokenBatch) -> NDArray[np.float32]:
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
