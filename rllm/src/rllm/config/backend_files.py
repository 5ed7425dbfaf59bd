"""The location of a backend's YAML files. Hydra finds them only as ``rllm/backend/<name>.yaml`` in some directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rllm_core.contracts.backend import BackendPlugin


def search_directory(backend: BackendPlugin[Any]) -> Path:
    """Return the directory that contains ``rllm/backend/<name>.yaml``.

    Raises:
        ValueError: the plugin spec has no such file. The message is a short reason.
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
    """Return the YAML file of a profile of the backend.

    Raises:
        ValueError: the file does not exist. The message is a short reason.
    """
    file = search_directory(backend) / "rllm" / "backend" / backend.name / f"{profile}.yaml"
    if not file.is_file():
        raise ValueError(f"its profile {profile} is missing: there is no file {file}")
    return file
