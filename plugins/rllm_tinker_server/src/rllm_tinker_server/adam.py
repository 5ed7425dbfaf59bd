"""AdamW over the parameters of one adapter, with settings that come with every step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rllm_tinker_server.messages import AdamStep, RequestRefused

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
            RequestRefused: the settings are invalid, or the gradient is not finite. A gradient that is not finite is
                dropped, and the weights do not change.
        """
        _check(step)
        trained = list(self._parameters.values())
        norm = torch.nn.utils.get_total_norm([each.grad for each in trained if each.grad is not None])
        if not torch.isfinite(norm):
            self.drop_gradient()
            raise RequestRefused(
                "The gradient is not finite. It was dropped and the weights stay as they were; look at the advantages "
                "and log-probs that were sent, or lower the learning rate and go on from an earlier checkpoint."
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
        if self._diverged is None and not all(bool(each.isfinite().all()) for each in trained):
            number = max((int(kept["step"]) for kept in self._optimizer.state.values()), default=0)
            self._diverged = f"optimizer step {number} with learning_rate={step.learning_rate:g}"
        return float(norm)

    def require_finite_weights(self) -> None:
        """Check the weights before they are saved.

        Raises:
            RequestRefused: a step made a weight infinite or NaN.
        """
        if self._diverged is not None:
            raise RequestRefused(
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
            RequestRefused: the state belongs to other parameters. The message calls the state `what`.
        """
        state: State = {}
        for name, parameter in self._parameters.items():
            found = {key: saved[f"{name}/{key}"] for key in KEYS if f"{name}/{key}" in saved}
            if not found:
                continue
            shapes = {key: tuple(value.shape) for key, value in found.items()}
            if shapes != {"step": (), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}:
                raise RequestRefused(f"{what} is damaged: its optimiser state of {name} has the shapes {shapes}.")
            # torch keeps the count of steps on the CPU.
            state[parameter] = {
                key: value if key == "step" else value.to(parameter.device) for key, value in found.items()
            }
        return state

    def replace(self, state: State) -> None:
        """Go on from this state; an empty one is that before the first step."""
        self._diverged = None
        self._optimizer.state.clear()
        self._optimizer.state.update(state)


def _check(step: AdamStep) -> None:
    for name in ("learning_rate", "weight_decay", "grad_clip_norm"):
        value = getattr(step, name)
        if not 0 <= value <= LARGEST:
            raise RequestRefused(f"{name} is {value}; it must be a number of 0 or more that float32 holds.")
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(step, name) < 1:
            raise RequestRefused(f"{name} is {getattr(step, name)}; it must be at least 0 and below 1.")
    # torch's step has these two as numbers in float32.
    if max(step.learning_rate / (1 - step.beta1), step.learning_rate * step.weight_decay) > LARGEST:
        raise RequestRefused(f"learning_rate is {step.learning_rate}; float32 has no number for such a step.")
    # Where a gradient has always been 0, AdamW divides 0 by eps, in float32.
    if not torch.finfo(torch.float32).tiny <= step.eps < math.inf:
        raise RequestRefused(f"eps is {step.eps}; it must be above 0 in float32, such as 1e-8.")
