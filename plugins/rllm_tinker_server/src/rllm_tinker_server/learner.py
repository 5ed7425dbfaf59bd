"""Training of one LoRA model: gradients accumulate until a client requests a step of AdamW."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rllm_tinker_server.checkpoint_files import SavedModel, check_fits
from rllm_tinker_server.examples import ExampleBatch, check_examples, example_batches
from rllm_tinker_server.lora import LoraModel
from rllm_tinker_server.losses import complete_config, find_loss
from rllm_tinker_server.messages import (
    STAND_IN,
    AdamStep,
    BaseModelInfo,
    ForwardBackward,
    ForwardBackwardResult,
    RequestError,
)

KEYS = ("step", "exp_avg", "exp_avg_sq")
"""Keys of torch's state of a parameter: the number of its steps, () float32, and the moments of its gradient."""

LARGEST = torch.finfo(torch.float32).max

State = dict[Tensor, dict[str, Tensor]]


class Adam:
    """`torch.optim.AdamW`, and the gradient that its next step is made with."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self._optimizer = torch.optim.AdamW(self._parameters.values())
        self._diverged: str | None = None
        """The step that made a weight infinite or NaN, with its learning rate."""

    def step(self, step: AdamStep) -> float:
        """Make a step, and start a new gradient.

        Without a gradient the weights, the moments and the count of steps do not change. torch does the same for
        parameters without a gradient.

        Returns:
            The norm of the gradient before clipping.

        Raises:
            RequestError: the settings are invalid, or the gradient is not finite. A gradient that is not finite is
                dropped, and the weights do not change.
        """
        _check(step)
        trained = list(self._parameters.values())
        norm = torch.nn.utils.get_total_norm([each.grad for each in trained if each.grad is not None])
        size = float(norm)
        if not math.isfinite(size):
            self.drop_gradient()
            raise RequestError(
                "The gradient is not finite. It was dropped and the weights did not change. Check the advantages "
                "and log-probs that were sent, or lower the learning rate and continue from an earlier checkpoint."
            )
        if step.grad_clip_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(trained, step.grad_clip_norm, norm)
        self._optimizer.param_groups[0].update(
            lr=step.learning_rate,
            betas=(step.beta1, step.beta2),
            eps=step.eps,
            weight_decay=step.weight_decay,
        )
        self._optimizer.step()
        self.drop_gradient()
        if self._diverged is None and not torch.stack([each.isfinite().all() for each in trained]).all():
            number = max((int(kept["step"]) for kept in self._optimizer.state.values()), default=0)
            self._diverged = f"optimizer step {number} with learning_rate={step.learning_rate:g}"
        return size

    def require_finite_weights(self) -> None:
        """Check the weights before they are saved.

        Raises:
            RequestError: a step made a weight infinite or NaN.
        """
        if self._diverged is not None:
            raise RequestError(
                f"The weights are not finite since {self._diverged}, so they were not saved. "
                "Load an earlier checkpoint, and lower the learning rate."
            )

    def drop_gradient(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """By ``<parameter>/<key>``; empty before the first step."""
        return {
            f"{name}/{key}": value
            for name, parameter in self._parameters.items()
            for key, value in self._optimizer.state.get(parameter, {}).items()
        }

    def parse(self, saved: Mapping[str, Tensor], what: str) -> State:
        """Parse a result of `state`, for `replace`.

        Raises:
            RequestError: the state belongs to other parameters. The message calls the state `what`.
        """
        state: State = {}
        for name, parameter in self._parameters.items():
            found = {key: saved[f"{name}/{key}"] for key in KEYS if f"{name}/{key}" in saved}
            if not found:
                continue
            shapes = {key: tuple(value.shape) for key, value in found.items()}
            if shapes != {"step": (), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}:
                raise RequestError(f"{what} is damaged: its optimizer state of {name} has the shapes {shapes}.")
            # torch keeps the count of steps on the CPU.
            state[parameter] = {
                key: value if key == "step" else value.to(parameter.device) for key, value in found.items()
            }
        return state

    def replace(self, state: State) -> None:
        """Continue from this state. An empty state is the state before the first step."""
        self._diverged = None
        self._optimizer.state.clear()
        self._optimizer.state.update(state)


def _check(step: AdamStep) -> None:
    for name in ("learning_rate", "weight_decay", "grad_clip_norm"):
        value = getattr(step, name)
        if not 0 <= value <= LARGEST:
            raise RequestError(f"{name} is {value}. It must be a number of 0 or more in the range of float32.")
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(step, name) < 1:
            raise RequestError(f"{name} is {getattr(step, name)}. It must be at least 0 and below 1.")
    # torch's step has these two as numbers in float32.
    if max(step.learning_rate / (1 - step.beta1), step.learning_rate * step.weight_decay) > LARGEST:
        raise RequestError(f"learning_rate is {step.learning_rate}. Float32 has no number for such a step.")
    # Where a gradient has always been 0, AdamW divides 0 by eps, in float32.
    if not torch.finfo(torch.float32).tiny <= step.eps < math.inf:
        raise RequestError(f"eps is {step.eps}. It must be above 0 in float32, such as 1e-8.")


MAX_LOGITS = 1 << 28
"""In memory at a time, 1 GiB in float32, several times over: of one micro-batch, or of a piece of a long example."""


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """A forward pass with its activations."""

    batch: ExampleBatch
    outputs: Tensor
    """(n_target,) log-probs, with a gradient."""


class Learner:
    """A LoRA model, its gradient and its optimizer. A request that fails changes none of them, unless it says so."""

    def __init__(self, lora: LoraModel, base: BaseModelInfo, *, max_tokens_per_microbatch: int) -> None:
        self.lora = lora
        self.adam = Adam(lora.parameters())
        self._base = base
        self._max_positions = max(1, MAX_LOGITS // base.vocabulary)
        self._max_tokens = max(1, min(max_tokens_per_microbatch, self._max_positions))
        self._trained = list(lora.parameters().values())
        self._pass: ForwardPass | None = None

    def forward_backward(self, request: ForwardBackward) -> ForwardBackwardResult:
        """Add the gradient of the request's loss to the stored gradient. With `forward_only`, only compute the loss.

        Clients compute log-probs and then a gradient of the same rows, for example if they compute the loss themselves.
        So the activations of a forward pass are stored until the next request, and a gradient of the same rows with
        the same weights needs no second forward pass. This is done for requests of one micro-batch only, because a
        gradient needs this memory too.

        Raises:
            RequestError: the data or the loss is invalid, or the loss is not finite. The gradient does not change.
        """
        loss, config = find_loss(request.loss), complete_config(request.loss, request.config)
        check_examples(request, self._base)
        logprobs: dict[int, NDArray[np.float32]] = {}
        total = 0.0
        stored = self._pass
        self.drop_pass()
        batches = list(example_batches(request.examples, self._max_tokens, self.lora.model.device))
        can_store = request.forward_only and len(batches) == 1
        with torch.set_grad_enabled(can_store or not request.forward_only), self._all_or_nothing():
            for batch in batches:
                outputs = stored.outputs if stored is not None and stored.batch.has_same_tokens(batch) else None
                stored = None
                if outputs is None:
                    outputs = batch.logprobs(self.lora.model, self._max_positions)
                losses = loss.function(batch.with_logprobs(outputs), config)
                share = losses.sum()
                if not torch.isfinite(share):
                    raise RequestError(_not_finite(batch, losses, request.loss))
                if can_store:
                    self._pass = ForwardPass(batch, outputs)
                elif not request.forward_only:
                    share.backward()  # type: ignore[no-untyped-call]
                total += float(share.detach())
                logprobs.update(zip(batch.members, batch.split(outputs), strict=True))
        metrics = {"loss:sum": total} | ({"stand_in_loss:max": 1.0} if request.loss == STAND_IN else {})
        return ForwardBackwardResult(
            logprobs=tuple(logprobs[index] for index in range(len(request.examples))), metrics=metrics
        )

    def optim_step(self, step: AdamStep) -> dict[str, float]:
        """See `Adam.step`. The metric ``grad_norm`` is the gradient's before it is clipped."""
        self.drop_pass()
        return {"grad_norm": self.adam.step(step)}

    def drop_pass(self) -> None:
        """Free the activations of the stored forward pass."""
        self._pass = None

    def restore(self, saved: SavedModel, *, optimizer: bool, what: str) -> None:
        """Restore saved weights exactly, and start a new gradient.

        Args:
            saved: saved state of a model with the same shapes.
            optimizer: True to restore the AdamW state too. Otherwise AdamW starts with an empty state.
            what: name of `saved` in an error.

        Raises:
            RequestError: the saved model has different shapes, or no AdamW state.
        """
        check_fits(saved, self.lora, what)
        if optimizer and saved.optimizer is None:
            raise RequestError(f"{what} has no optimizer state. Load only its weights, or a saved training state.")
        state = self.adam.parse(saved.optimizer, what) if optimizer and saved.optimizer is not None else {}
        self.drop_pass()
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
