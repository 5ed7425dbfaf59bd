"""The configuration in a run's directory: ``config.yaml``, which can be given back as ``--config`` for the same run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllm.config.layers import layer_from_file
from rllm.config.merge import merge_layers
from rllm.config.resolve import resolve
from rllm.config.yaml_text import as_yaml
from rllm_core.files import write_atomically

FILE_NAME = "config.yaml"


def save_config(tree: Mapping[str, Any], directory: str | Path) -> Path:
    """Write values into an existing directory, and return the file. The write is atomic, so no partial file remains.

    Args:
        tree: the values to read back. Text such as ``${key}`` in it is read back as an interpolation.
    """
    file = Path(directory) / FILE_NAME
    write_atomically(file, as_yaml(tree))
    return file


def read_config(directory: str | Path) -> dict[str, Any]:
    """Read what `save_config` wrote, interpolations resolved."""
    return resolve(merge_layers([layer_from_file(Path(directory) / FILE_NAME)], []))
