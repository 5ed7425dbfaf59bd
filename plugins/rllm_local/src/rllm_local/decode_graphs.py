"""Decode passes that a device captures once as a graph. A replay is one launch instead of about 38 for each layer.

A graph has fixed shapes and fixed memory. So passes are padded to a few shapes, and their inputs are copied into the
memory of the captured pass. Without this, a GPU waits for Python between the small kernels of a decode pass.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_local.transfer import to_device

log = logging.getLogger(__name__)
ROWS = 8
"""Passes with more rows are padded to a multiple. Padding writes to page 0, and reads only it."""
LIMIT = 32
"""Maximum number of graphs. Further shapes are computed without a graph."""


class PassArrays(NamedTuple):
    """Inputs of a decode pass."""

    ids: NDArray[np.int64]
    """(n_row, 1) last token of each row."""
    positions: NDArray[np.int64]
    """(n_row, 1) positions of the tokens."""
    places: NDArray[np.int64]
    """(n_row,) places of their keys and values in the pages."""
    table: NDArray[np.int64]
    """(n_row, n_page) numbers of each row's pages."""


Forward = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, object]]
"""A function from the inputs of a pass, in the order of `PassArrays`, to its logits (n_row, 1, n_vocabulary), and to
objects whose memory it uses."""


@dataclass(frozen=True, eq=False)
class _CapturedPass:
    graph: Any
    inputs: Tensor
    """(n,) int64, all inputs."""
    logits: Tensor
    used: object
    """Objects whose memory the graph uses."""


class DecodeGraphs:
    """The captured passes of a model and its cache."""

    def __init__(self, device: torch.device) -> None:
        """Prepare for a device with the interface of `torch.cuda.graph`. Use other devices without graphs."""
        module = torch.get_device_module(device) if device.type != "cpu" else None
        self._device = device
        self._module: Any = module if hasattr(module, "CUDAGraph") else None
        self.clear()

    def clear(self) -> None:
        """Remove all graphs, because the memory of the cache has changed."""
        self._captured: dict[tuple[int, int], _CapturedPass] = {}
        self._uses: Counter[tuple[int, int]] = Counter()
        # Graphs share a pool of memory. A pool without graphs cannot be used again.
        self._pool: Any = None

    def compute(self, forward: Forward, arrays: PassArrays) -> Tensor | None:
        """Return the logits, (n_row, 1, n_vocabulary), or None if no graph is available.

        The next call overwrites the logits. The second pass with a shape is captured.
        """
        if self._module is None:
            return None
        padded = _pad(arrays)
        shape = padded.table.shape
        self._uses[shape] += 1
        if shape not in self._captured:
            if self._uses[shape] < 2 or len(self._captured) >= LIMIT:
                return None
            return self._capture(forward, padded, len(arrays.ids))
        captured = self._captured[shape]
        captured.inputs.copy_(torch.from_numpy(_join(padded)), non_blocking=True)
        captured.graph.replay()
        return captured.logits[: len(arrays.ids)]

    def _capture(self, forward: Forward, padded: PassArrays, n_row: int) -> Tensor | None:
        (inputs,) = to_device(self._device, _join(padded))
        views = [
            part.view(array.shape)
            for part, array in zip(torch.split(inputs, [array.size for array in padded]), padded, strict=True)
        ]
        forward(*views)  # libraries allocate their memory in the first pass
        graph = self._module.CUDAGraph()
        self._pool = self._pool or self._module.graph_pool_handle()
        try:
            # A failed capture would leave the thread on the stream of the capture. Other threads may train or score.
            with (
                self._module.stream(self._module.current_stream()),
                self._module.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
            ):
                logits, used = forward(*views)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # For example, the experts of a mixture are chosen by numbers that the program reads.
            log.warning("This model decodes without graphs, because a pass cannot be captured: %s", error)
            self._module = None
            self.clear()
            return None
        graph.replay()  # a capture computes nothing
        self._captured[padded.table.shape] = _CapturedPass(graph, inputs, logits, used)
        return logits[:n_row]


def _pad(arrays: PassArrays) -> PassArrays:
    n_row, n_page = arrays.table.shape
    more_rows = (1 << (n_row - 1).bit_length()) - n_row if n_row < ROWS else -n_row % ROWS
    more_pages = (1 << (n_page - 1).bit_length()) - n_page
    ids, positions, places = (np.pad(each, [(0, more_rows), *[(0, 0)] * (each.ndim - 1)]) for each in arrays[:3])
    return PassArrays(ids, positions, places, np.pad(arrays.table, [(0, more_rows), (0, more_pages)]))


def _join(arrays: PassArrays) -> NDArray[np.int64]:
    return np.concatenate([array.reshape(-1) for array in arrays])
