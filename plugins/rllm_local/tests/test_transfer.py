"""Copies to and from a device in one transfer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pretend_device
import pytest
import torch
from torch import Tensor

from rllm_local.transfer import to_device, to_host

ARRAYS = (
    np.arange(6).reshape(2, 3),
    np.array([True, False, True]),
    np.float32(2.5) * np.ones((), np.float32),
    np.zeros((0, 4)),
    np.arange(8)[::2],
)


@dataclass(frozen=True)
class _Results:
    tensors: list[Tensor]
    by_name: dict[str, Tensor | None]
    place: np.ndarray


@pytest.mark.parametrize("name", ["cpu", "pretend"])
def test_arrays_arrive_with_shape_and_dtype(name: str) -> None:
    pretend_device.register()
    with pretend_device.count() as counts:
        tensors = to_device(torch.device(name), *ARRAYS)
    assert counts.waits.total() == 0
    assert counts.kernels.total() == 0
    for tensor, array in zip(tensors, ARRAYS, strict=True):
        assert tensor.device.type == name
        np.testing.assert_array_equal(tensor.cpu().numpy(), array, strict=True)


@pytest.mark.parametrize("name", ["cpu", "pretend"])
def test_nested_results_return_in_one_wait(name: str) -> None:
    pretend_device.register()
    tensors = to_device(torch.device(name), *ARRAYS)
    results = _Results([tensors[1], tensors[2]], {"a": tensors[0], "b": None, "c": tensors[3]}, ARRAYS[0])
    with pretend_device.count() as counts:
        found = to_host(results)
    assert counts.waits.total() == (name != "cpu")
    expected = (*(ARRAYS[index] for index in (1, 2, 0, 3)),)
    for tensor, array in zip((*found.tensors, found.by_name["a"], found.by_name["c"]), expected, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array, strict=True)
    assert found.by_name["b"] is None
    assert found.place is ARRAYS[0]
