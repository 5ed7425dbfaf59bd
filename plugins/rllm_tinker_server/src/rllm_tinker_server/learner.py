"""Training of one LoRA model: gradients accumulate until a client requests a step of AdamW."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_tinker_server.adam import Adam
from rllm_tinker_server.checkpoint_files import SavedModel, check_fits
from rllm_tinker_server.example_batches import ExampleBatch, example_batches
from rllm_tinker_server.example_checks import check_examples
from rllm_tinker_server.lora import LoraModel
from rllm_tinker_server.losses import complete_config, find_loss
from rllm_tinker_server.messages import (
    AdamStep,
    BaseModel,
    ForwardBackward,
    ForwardBackwardResult,
    RequestRefused,
)

MAX_LOGITS = 1 << 28
"""In memory at a time, 1 GiB in float32, several times over: of one micro-batch, or of a piece of a long example."""


class Learner:
    """A LoRA model, its gradient and its optimiser. A request that fails changes none of them, unless it says so."""

    def __init__(self, lora: LoraModel, base: BaseModel, *, max_tokens_per_microbatch: int) -> None:
        self.lora = lora
        self.adam = Adam(lora.parameters())
        self._base = base
        self._max_positions = max(1, MAX_LOGITS // base.vocabulary)
        self._max_tokens = max(1, min(max_tokens_per_microbatch, self._max_positions))
        self._trained = list(lora.parameters().values())

    def forward_backward(self, request: ForwardBackward) -> ForwardBackwardResult:
        """Add the gradient of the request's loss to the stored gradient. With `forward_only`, only compute the loss.

        Raises:
            RequestRefused: the data or the loss is invalid, or the loss is not finite. The gradient does not change.
        """
        loss, config = find_loss(request.loss), complete_config(request.loss, request.config)
        check_examples(request, self._base)
        logprobs: dict[int, NDArray[np.float32]] = {}
        total = 0.0
        with torch.set_grad_enabled(not request.forward_only), self._all_or_nothing():
            for batch in example_batches(request.examples, self._max_tokens, self.lora.model.device):
                outputs = batch.logprobs(self.lora.model, self._max_positions)
                losses = loss.function(batch.with_logprobs(outputs), config)
                share = losses.sum()
                if not torch.isfinite(share):
                    raise RequestRefused(_not_finite(batch, losses, request.loss))
                if not request.forward_only:
                    share.backward()  # type: ignore[no-untyped-call]
                total += float(share.detach())
                logprobs.update(zip(batch.members, batch.split(outputs), strict=True))
        return ForwardBackwardResult(
            logprobs=tuple(logprobs[index] for index in range(len(request.examples))), metrics={"loss:sum": total}
        )

    def optim_step(self, step: AdamStep) -> dict[str, float]:
        """See `Adam.step`. The metric ``grad_norm`` is the gradient's before it is clipped."""
        return {"grad_norm": self.adam.step(step)}

    def restore(self, saved: SavedModel, *, optimizer: bool, what: str) -> None:
        """Restore saved weights exactly, and start a new gradient.

        Args:
            saved: saved state of a model with the same shapes.
            optimizer: True to restore the AdamW state too. Otherwise AdamW starts with an empty state.
            what: name of `saved` in an error.

        Raises:
            RequestRefused: the saved model has different shapes, or no AdamW state.
        """
        check_fits(saved, self.lora, what)
        if optimizer and saved.optimizer is None:
            raise RequestRefused(f"{what} has no optimiser state. Load only its weights, or a saved training state.")
        state = self.adam.parse(saved.optimizer, what) if optimizer and saved.optimizer is not None else {}
        with torch.no_grad():
            for name, parameter in self.lora.parameters().items():
                parameter.copy_(saved.adapter[name])
        self.adam.replace(state)
        self.adam.drop_gradient()

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Undo all changes of the gradient if an exception occurs inside."""
        before = [each.grad for each in self._trained]
        self.adam.drop_gradient()
        try:
            yield
        except BaseException:
            for each, gradient in zip(self._trained, before, strict=True):
                each.grad = gradient
            raise
        for each, gradient in zip(self._trained, before, strict=True):
            if gradient is not None:
                each.grad = gradient if each.grad is None else gradient.add_(each.grad)


def _not_finite(batch: ExampleBatch, losses: Tensor, name: str) -> str:
    bad = [
        member for member, part in zip(batch.members, batch.split(losses), strict=True) if not np.isfinite(part).all()
    ]
    where = f"Datum {bad[0]}: the" if bad else "The"
    return (
        f"{where} loss {name} is not finite, and nothing of this request was added to the gradient. "
        "Look at the log-probs and advantages that were sent, and at whether the weights have diverged."
    )
