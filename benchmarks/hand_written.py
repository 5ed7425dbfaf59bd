"""A trainer without a framework: sampling by `generate`, and an update with padded rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllm_core.data.batch import TokenBatch
from rllm_local.settings import TrainingSection


def sample(model: Any, prompts: Sequence[Sequence[int]], count: int) -> Tensor:
    """(n_prompt, count) tokens drawn at temperature 1, with prompts padded on the left. No token ends a response."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    real = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    drawn: Tensor = model.generate(
        ids,
        attention_mask=real,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=count,
        min_new_tokens=count,
        pad_token_id=0,
    )
    return drawn[:, width:]


class Update:
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
        ids, mask, old, advantages = (self._padded(batch, rows, width, values) for values in columns)
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

    def _padded(self, batch: TokenBatch, rows: Any, width: int, values: Any) -> Tensor:
        out = torch.zeros((len(rows), width), dtype=torch.from_numpy(values[:0]).dtype)
        for index, row in enumerate(rows):
            start, end = batch.row_offsets[row : row + 2]
            out[index, : end - start] = torch.from_numpy(values[start:end])
        return out
