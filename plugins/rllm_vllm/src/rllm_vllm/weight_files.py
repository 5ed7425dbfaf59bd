"""Pass weights to vLLM in safetensors files. The files are in memory if there is room, and on disk otherwise."""

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
"""Size at which a file is closed, in bytes. Until then, its tensors are in memory twice."""


@contextmanager
def weight_files(weights: Iterable[tuple[str, Tensor]]) -> Iterator[Path]:
    """Write weights to a directory that exists as long as the context. It blocks, so call it on a thread."""
    named = list(weights)
    size = sum(tensor.nbytes for _, tensor in named)
    with ProcessDirectory("rllm-vllm-", _place(size)) as files:
        directory = files.path
        for number, part in enumerate(_parts(named)):
            _write(part, directory / f"{number:05}.safetensors")
        yield directory


def _place(size: int) -> Path | None:
    """Return the directory in memory if it has room for twice the size. None: use the directory for temporary files."""
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
