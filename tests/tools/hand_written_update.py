"""An update that is written by hand with torch and transformers, for comparisons with the backend `local`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllm_core.algorithms.options import PpoParams
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.loss import LossPlugin
from rllm_core.data.batch import TokenBatch
from rllm_core.updates.losses import ppo
from rllm_local.settings import TrainingSection


class HandWrittenUpdate:
    """One step of PPO: rows padded to the longest, micro-batches of 16 rows, logits of responses only, AdamW."""

    def __init__(self, model: Any, settings: TrainingSection) -> None:
        self._model = model
        self._settings = settings
        self._optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
        )

    def __call__(self, batch: TokenBatch) -> float:
        """Make a step on a batch that has `advantages` and `old_logprobs`, and return the loss."""
        self._optimizer.zero_grad()
        total = float(batch.loss_mask.sum())
        loss = 0.0
        for rows in np.array_split(np.arange(batch.n_rows), max(1, batch.n_rows // 16)):
            part = self._loss(batch, rows) / total
            part.backward()
            loss += float(part.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.max_grad_norm)
        self._optimizer.step()
        return loss

    def _loss(self, batch: TokenBatch, rows: Any) -> Tensor:
        width = int(batch.row_lengths[rows].max())
        columns = (batch.tokens.astype(np.int64), batch.loss_mask, batch.old_logprobs, batch.advantages)
        ids, mask, old, advantages = (self._pad(batch, rows, width, values) for values in columns)
        mask, old, advantages = mask[:, 1:], old[:, 1:], advantages[:, 1:]
        states = self._model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[mask]
        distribution = torch.log_softmax(self._model.lm_head(states).float(), dim=-1)
        logprobs = distribution.gather(1, ids[:, 1:][mask][:, None])[:, 0]
        with torch.no_grad():
            # Every trainer shows the entropy.
            self.entropy = -(distribution.exp() * distribution).sum(dim=-1).mean()
        ratio = (logprobs - old[mask]).exp()
        clipped = ratio.clamp(0.8, 1.2)
        return torch.maximum(-ratio * advantages[mask], -clipped * advantages[mask]).sum()

    def _pad(self, batch: TokenBatch, rows: Any, width: int, values: Any) -> Tensor:
        out = torch.zeros((len(rows), width), dtype=torch.from_numpy(values[:0]).dtype)
        for index, row in enumerate(rows):
            start, end = batch.row_offsets[row : row + 2]
            out[index, : end - start] = torch.from_numpy(values[start:end])
        return out


def ppo_plan() -> UpdatePlan:
    """Return the plan of an update with the same loss."""
    plugin: LossPlugin[Any] = LossPlugin(name="ppo", summary="", load_params=lambda: PpoParams, load=lambda: ppo)
    registered = Registered(plugin=plugin, distribution="benchmarks", version="0")
    chosen = PluginChoice(registered=registered, params=PpoParams())
    return UpdatePlan(losses={"agent": chosen}, global_step=0, aggregation="token-mean", entropy_coeff=0.0, seed=0)
