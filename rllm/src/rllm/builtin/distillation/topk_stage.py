"""The stage `topk_kl`: a loss between the policy's and a teacher's distribution at each sampled token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rllm.builtin.distillation.options import TopkKlParams
from rllm_core.contracts.stage_context import StageContext
from rllm_core.contracts.teacher import DistributionTeacher
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch, TokenTargets
from rllm_core.errors import PluginError, failures_as
from rllm_core.pipeline.metrics import advantage_metrics


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
        ids, logprobs = await teacher_distributions(teacher, batch, params.k)
        targets = TokenTargets(ids=ids, logprobs=logprobs, weight=params.weight, beta=params.beta)
        step.batch = replace(batch, targets=targets)
        if batch.advantages is None:
            step.batch = step.batch.with_columns(advantages=np.zeros(len(batch.tokens), np.float32))
            step.estimators = ("topk_kl",) * len(batch.groups)
            step.metrics |= advantage_metrics(step.batch)
        step.metrics["distill/tokens"] = float(len(ids))
        if len(ids):
            step.metrics["distill/teacher_mass"] = float(np.exp(logprobs.astype(np.float64)).sum(axis=1).mean())


async def teacher_distributions(
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
