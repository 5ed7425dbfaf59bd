"""Counts bytes of tensors, the same on every machine; the resident size of a process is neither."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """Within, `peak` is the most bytes that tensors which are made there take at once."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._now = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage(), 0)
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._note(storage, storage.nbytes())
        return out

    def _note(self, storage: torch.UntypedStorage, size: int) -> None:
        if storage._cdata not in self._sizes:
            self._sizes[storage._cdata] = size
            self._now += size
            self.peak = max(self.peak, self._now)
            weakref.finalize(storage, self._forget, storage._cdata)

    def _forget(self, address: int) -> None:
        self._now -= self._sizes.pop(address, 0)
