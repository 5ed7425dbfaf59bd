"""Where a backend's YAML files must lie: ``rllm/backend/<name>.yaml`` in some folder, or Hydra does not find them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rllm_core.contracts.backend import BackendPlugin


def search_directory(backend: BackendPlugin[Any]) -> Path:
    """The folder that holds ``rllm/backend/<name>.yaml``.

    Raises:
        ValueError: the record names no such file; the message says what is wrong, in a few words.
    """
    if backend.config_yaml is None:
        raise ValueError("it has no YAML file")
    file = Path(backend.config_yaml()).absolute()
    if file.parts[-3:] != ("rllm", "backend", f"{backend.name}.yaml"):
        raise ValueError(f"its config_yaml is {file}, which must end in rllm/backend/{backend.name}.yaml")
    if not file.is_file():
        raise ValueError(f"its defaults are missing: there is no file {file}")
    return file.parents[2]


def profile_file(backend: BackendPlugin[Any], profile: str) -> Path:
    """The YAML file of one of the backend's profiles.

    Raises:
        ValueError: there is none; the message says what is wrong, in a few words.
    """
    file = search_directory(backend) / "rllm" / "backend" / backend.name / f"{profile}.yaml"
    if not file.is_file():
        raise ValueError(f"its profile {profile} is missing: there is no file {file}")
    return file
