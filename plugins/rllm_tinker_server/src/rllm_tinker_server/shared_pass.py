"""One forward and backward pass for the requests of several LoRA models.

The rows of all requests are one batch. The base model's layers compute all rows at once, and each adapter computes its
model's rows. A small pass costs mostly calls of torch, so two requests together take little more time than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rllm_tinker_server.examples import MAX_TARGETS, ExampleBatch, joined
from rllm_tinker_server.learner import Learner, loss_sum, result_of
from rllm_tinker_server.lora import ALPHA, ROUTERS, sharing_copy
from rllm_tinker_server.messages import ForwardBackward, ForwardBackwardResult

MAX_TOKENS = 512
"""Maximum padded tokens of a shared pass. A larger pass costs its arithmetic, of which sharing saves nothing."""
MAX_PADDING = 1.25
"""Maximum padded tokens of a shared pass, relative to the padded tokens of separate passes."""
MAX_RANKS = 256
"""Maximum sum of the ranks of a shared pass, because each row is multiplied with the factors of all its models."""


@dataclass(frozen=True, eq=False)
class Job:
    """A request of one model."""

    model_id: str
    learner: Learner
    request: ForwardBackward
    batches: tuple[ExampleBatch, ...]
    """Micro-batches of a separate pass."""

    @property
    def batch(self) -> ExampleBatch:
        """The only micro-batch."""
        (batch,) = self.batches
        return batch


def is_small(request: ForwardBackward) -> bool:
    """Return True if a pass may contain the request and others. Its data may be invalid."""
    return sum(example.tokens.size for example in request.examples) <= MAX_TOKENS


def groups(jobs: Sequence[Job]) -> list[list[Job]]:
    """Divide jobs of different models into groups that can share a pass. A large job is a separate group."""
    found: list[list[Job]] = []
    for job in jobs:
        fitting = (group for group in found if _fits([*group, job]))
        group = next(fitting, None)
        if group is None:
            found.append([job])
        else:
            group.append(job)
    return found


def _fits(jobs: Sequence[Job]) -> bool:
    if any(len(job.batches) > 1 for job in jobs) or len({job.request.forward_only for job in jobs}) > 1:
        return False
    rows, widths, depths = zip(*(job.batch.targets.shape for job in jobs), strict=True)
    padded = sum(rows) * max(widths)
    separate = sum(job.batch.tokens.numel() for job in jobs)
    ranks = sum(job.learner.lora.spec.rank for job in jobs)
    return (
        padded <= min(MAX_TOKENS, MAX_PADDING * separate) and padded * max(depths) <= MAX_TARGETS and ranks <= MAX_RANKS
    )


@dataclass(frozen=True, eq=False)
class _Adapters:
    """The adapters of all models on one linear layer, for one pass. ``rank`` is the sum of their ranks."""

    down: Tensor
    """First factors of the adapters, below each other: (rank, n_in) float32."""
    up: Tensor
    """Second factors of the adapters, in the same order: (n_out, rank) float32."""
    scale: Tensor
    """(n_row, 1, rank) float32: alpha / rank for the rank components of the row's own model, 0 for the others."""


class _SharedLinear(nn.Module):
    """A linear layer of the base model, with each row changed by the adapter of the row's model."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self._base = base
        self.adapters: _Adapters | None = None
        """None if no model of the pass adapts this layer."""

    @property
    def weight(self) -> Any:
        return self._base.weight

    @property
    def bias(self) -> Any:
        return self._base.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute (n_row, width, n_in) or (n_row * width, n_in)."""
        result: Tensor = self._base(inputs)
        found = self.adapters
        if found is None:
            return result
        low = nn.functional.linear(inputs.to(found.down.dtype), found.down)
        # Without the position, so that a layer may receive the tokens of all rows in one dimension.
        own = (low.view(len(found.scale), -1, low.shape[-1]) * found.scale).view(low.shape)
        return (result + nn.functional.linear(own, found.up)).to(result.dtype)


class SharedPass:
    """A module tree over the base model's tensors that applies several adapters."""

    def __init__(self, base: Any) -> None:
        self._model: Any = sharing_copy(base)
        self._model.config.tie_word_embeddings = False
        linear = [(name, module) for name, module in self._model.named_modules() if isinstance(module, nn.Linear)]
        # A router sends some tokens of some rows to each expert.
        self.is_possible = not any(name.rpartition(".")[2] in ROUTERS for name, _ in linear)
        self._layers = {name: _SharedLinear(module) for name, module in linear}
        for name, layer in self._layers.items():
            self._model.set_submodule(name, layer)

    def forward_backward(self, jobs: Sequence[Job]) -> list[ForwardBackwardResult]:
        """Add the gradient of each job's loss to the gradient of its model, see `Learner.forward_backward`.

        Raises:
            Exception: a request failed, or a value is not finite, which can spread to all rows. No gradient changes.
        """
        forward_only = jobs[0].request.forward_only
        batch = joined([job.batch for job in jobs])
        with torch.set_grad_enabled(not forward_only), ExitStack() as undoing:
            for job in jobs:
                undoing.enter_context(job.learner.all_or_nothing())
            self._set_adapters(jobs)
            logprobs = batch.logprobs(self._model, batch.tokens.numel())
            outputs = logprobs.split([int(job.batch.real.sum()) for job in jobs])  # type: ignore[no-untyped-call]
            losses = [loss_sum(job.request, job.batch, output) for job, output in zip(jobs, outputs, strict=True)]
            if not forward_only:
                torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
                self._give_gradients(jobs)
        results = []
        for job, output, loss in zip(jobs, outputs, losses, strict=True):
            by_example = dict(zip(job.batch.members, job.batch.split(output), strict=True))
            results.append(result_of(job.request, by_example, float(loss.detach())))
        return results

    @torch.no_grad()
    def _set_adapters(self, jobs: Sequence[Job]) -> None:
        """Concatenate the adapters of each layer. The copies are leaves, so a pass has no autograd nodes for them."""
        rows = torch.tensor([len(job.batch.tokens) for job in jobs])
        scales: dict[tuple[int, ...], Tensor] = {}
        for name, layer in self._layers.items():
            factors = [job.learner.lora.factors(name) for job in jobs]
            ranks = tuple(0 if each is None else len(each.down) for each in factors)
            present = [each for each in factors if each is not None]
            if not present:
                layer.adapters = None
                continue
            if ranks not in scales:
                blocks = [torch.full((1, rank), ALPHA / max(rank, 1)) for rank in ranks]
                scale = torch.block_diag(*blocks).repeat_interleave(rows, dim=0)[:, None]  # type: ignore[no-untyped-call]
                scales[ranks] = scale.to(present[0].down.device)
            down, up = torch.cat([each.down for each in present]), torch.cat([each.up for each in present], dim=1)
            layer.adapters = _Adapters(down.requires_grad_(), up.requires_grad_(), scales[ranks])

    @torch.no_grad()
    def _give_gradients(self, jobs: Sequence[Job]) -> None:
        """Split the gradients of the concatenated adapters between the models."""
        adapted = {name: layer.adapters for name, layer in self._layers.items() if layer.adapters is not None}
        gradients = {name: (_gradient(each.down), _gradient(each.up)) for name, each in adapted.items()}
        if not torch.isfinite(torch.nn.utils.get_total_norm([each for pair in gradients.values() for each in pair])):
            raise FloatingPointError("a gradient is not finite")
        for name, (down, up) in gradients.items():
            start = 0
            for job in jobs:
                factors = job.learner.lora.factors(name)
                if factors is not None:
                    end = start + len(factors.down)
                    factors.down.grad, factors.up.grad = down[start:end].clone(), up[:, start:end].clone()
                    start = end


def _gradient(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad
