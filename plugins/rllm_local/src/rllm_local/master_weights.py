"""Float32 weights for the optimizer of a model that computes in bfloat16.

bfloat16 has 8 significant bits. The distance from a weight of 0.1 to the next value is 0.0005. AdamW moves a weight by
about the learning rate, so most updates would round to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


def cast_weights(model: Any, dtype: torch.dtype) -> None:
    """Cast a float32 model in place, with the same result as `from_pretrained(dtype=…)` of transformers.

    Parameters and saved buffers are cast, except those that the model's class keeps in float32. Computed buffers are
    not cast, because rotary frequencies in bfloat16 would change the positions of late tokens.
    """
    kept = list(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if dtype == torch.float16:
        kept += getattr(model, "_keep_in_fp32_modules", None) or ()
    pattern = re.compile("|".join(name.replace("*", ".*") for name in kept) or r"(?!)")
    saved = model.state_dict(keep_vars=True)
    for name, tensor in saved.items():
        if tensor.is_floating_point() and not pattern.search(name):
            tensor.data = tensor.data.to(dtype)
    model.config.dtype = dtype


class MasterWeights:
    """A model's trained weights in float32, for the optimizer and for checkpoints.

    A float32 parameter is its own master. For other parameters, each backward pass moves the gradient to the master's
    `.grad`, so that micro-batches are summed in float32. `write` rounds the master back into the parameter.
    """

    def __init__(self, model: Any, exact: Mapping[Parameter, Tensor] | None = None) -> None:
        """Create the masters from `exact` (float32, by parameter), or from the current parameters if it is None."""
        self.model = model
        self._masters: dict[Parameter, Parameter] = {}
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue
            if parameter.dtype == torch.float32:
                self._masters[parameter] = parameter
                continue
            weights = parameter.detach().float() if exact is None else exact[parameter]
            self._masters[parameter] = Parameter(weights)
            parameter.register_post_accumulate_grad_hook(self._move_gradient)

    @classmethod
    def from_float32(cls, model: Any, dtype: torch.dtype) -> MasterWeights:
        """Cast a float32 model in place, see `cast_weights`. The masters are the weights before the cast."""
        exact = {parameter: parameter.data for parameter in model.parameters()}
        cast_weights(model, dtype)
        return cls(model, exact)

    @property
    def trained_parameters(self) -> list[Parameter]:
        """The model's parameters that have a master, in the model's order."""
        return list(self._masters)

    def __iter__(self) -> Iterator[Parameter]:
        """Iterate over the masters, in the model's order."""
        return iter(self._masters.values())

    def get_master(self, parameter: Parameter) -> Parameter:
        """Return a parameter's master. A parameter of a different module is its own master."""
        return self._masters.get(parameter, parameter)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield the masters with the names of their parameters."""
        for name, parameter in self.model.named_parameters():
            if parameter in self._masters:
                yield name, self._masters[parameter]

    @torch.no_grad()
    def write(self) -> None:
        """Round the masters into the model."""
        for parameter, master in self._masters.items():
            if master is not parameter:
                parameter.copy_(master)

    def state_dict(self) -> dict[str, Tensor]:
        """Return all tensors of the model in float32, by their names in the model. Tied weights share memory."""
        state: dict[str, Any] = self.model.state_dict(keep_vars=True)
        return {
            name: self._masters.get(tensor, tensor).detach().float() if tensor.is_floating_point() else tensor
            for name, tensor in state.items()
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore the values of `state_dict`. Raise RuntimeError if they belong to a different model."""
        self.model.load_state_dict(state)
        for name, master in self.named_parameters():
            master.copy_(state[name])

    def _move_gradient(self, parameter: Parameter) -> None:
        assert parameter.grad is not None
        master, gradient = self._masters[parameter], parameter.grad
        master.grad = gradient.float() if master.grad is None else master.grad.add_(gradient)
        parameter.grad = None
