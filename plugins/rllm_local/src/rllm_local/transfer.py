"""Copies to and from a model's device: all tensors of a pass in one transfer.

torch waits for all earlier work of a device at each ordinary copy, so the device runs out of work during the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNED = 8
"""Bytes. Every array starts at a multiple."""
T = TypeVar("T")


def to_device(device: torch.device, *arrays: NDArray[Any]) -> tuple[Tensor, ...]:
    """Return tensors on the device with the values, shapes and dtypes of the arrays. torch does not wait.

    On a CPU they share the arrays' memory. On other devices they share the memory of one copy. The arrays may change
    after the call, because torch reads pageable memory before it returns from a non-blocking copy.
    """
    arrays = tuple(np.asarray(array, order="C") for array in arrays)
    if device.type == "cpu":
        return tuple(torch.from_numpy(array) for array in arrays)
    sizes = [array.nbytes + -array.nbytes % ALIGNED for array in arrays]
    starts = np.cumsum([0, *sizes]).tolist()
    packed = np.zeros(starts[-1], np.uint8)
    for start, array in zip(starts, arrays, strict=False):
        packed[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
    copy = torch.from_numpy(packed).to(device, non_blocking=True)
    return tuple(
        copy[start : start + array.nbytes].view(torch.from_numpy(array).dtype).view(array.shape)
        for start, array in zip(starts, arrays, strict=False)
    )


def to_host(value: T) -> T:
    """Return a value with its tensors on the CPU. Copy all of them in one transfer, for which the program waits.

    Tensors that are on the CPU already do not change. See `map_tensors` for the kinds of values.
    """
    there: dict[int, Tensor] = {}
    map_tensors(value, lambda tensor: there.setdefault(id(tensor), tensor) if tensor.device.type != "cpu" else tensor)
    if not there:
        return value
    # The tensors with the largest elements come first, so that all elements are aligned.
    ordered = sorted(there.values(), key=lambda tensor: -tensor.element_size())
    packed = torch.cat([tensor.detach().reshape(-1).view(torch.uint8) for tensor in ordered]).cpu()
    parts = torch.split(packed, [tensor.nbytes for tensor in ordered])
    here = {id(tensor): part.view(tensor.dtype).view(tensor.shape) for tensor, part in zip(ordered, parts, strict=True)}
    return map_tensors(value, lambda tensor: here.get(id(tensor), tensor))


def map_tensors(value: T, function: Callable[[Tensor], Tensor]) -> T:
    """Return a copy of a value with the function's results instead of its tensors.

    A value is a tensor, or a list, a tuple without names, a mapping or a dataclass of values. Other objects do not
    change.
    """
    changed: Any = value
    if isinstance(value, Tensor):
        changed = function(value)
    elif isinstance(value, list | tuple):
        changed = type(value)(map_tensors(each, function) for each in value)
    elif isinstance(value, Mapping):
        changed = {name: map_tensors(each, function) for name, each in value.items()}
    elif is_dataclass(value) and not isinstance(value, type):
        changed = replace(
            value, **{each.name: map_tensors(getattr(value, each.name), function) for each in fields(value)}
        )
    return cast(T, changed)
