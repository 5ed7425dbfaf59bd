"""Weights on their way to vLLM: safetensors files in memory where there is room, on disk where there is not."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rllm_serving.process_directory import ProcessDirectory

if TYPE_CHECKING:
    from torch import Tensor

IN_MEMORY = Path("/dev/shm")
FILE_BYTES = 1 << 29
"""A file is closed when it has this many; its tensors are in memory twice until then."""


@contextmanager
def weight_files(weights: Iterable[tuple[str, Tensor]]) -> Iterator[Path]:
    """A folder with these weights, for as long as the context lasts. Blocks: call it on a thread."""
    named = list(weights)
    size = sum(tensor.nbytes for _, tensor in named)
    with ProcessDirectory("rllm-vllm-", _place(size)) as files:
        directory = files.path
        for number, part in enumerate(_parts(named)):
            _write(part, directory / f"{number:05}.safetensors")
        yield directory


def _place(size: int) -> Path | None:
    """Memory with room for twice the size, or None: wherever temporary files lie."""
    if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > 2 * size:
        return IN_MEMORY
    return None


def _parts(named: list[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    part: dict[str, Tensor] = {}
    size = 0
    for name, tensor in named:
        if part and size + tensor.nbytes > FILE_BYTES:
            yield part
            part, size = {}, 0
        part[name] = tensor
        size += tensor.nbytes
    if part:
        yield part


def _write(part: dict[str, Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in part.items()}, path)
