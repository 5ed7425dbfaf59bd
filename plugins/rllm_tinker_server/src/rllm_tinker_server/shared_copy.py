"""A second module tree over the same tensors: what is changed of one tree's modules, the other never sees."""

from __future__ import annotations

import copy
from typing import Any


def sharing_copy(model: Any) -> Any:
    """Copy all modules of a model (and its config), and none of its parameters and buffers.

    Ties survive: two modules that share a parameter in `model` share the same one in the copy.
    """
    tensors = (*model.parameters(), *model.buffers())
    # What deepcopy finds in its memo it takes for copied already.
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
