"""The core's part of a run's saved configuration. The backend's is not looked at: it need not be installed here."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ValidationError

from rllm_core.config.keys import known_keys, section_of
from rllm_core.config.problems import as_config_error, describe, parse
from rllm_core.config.save import FILE_NAME, read_config
from rllm_core.config.schema import RunConfig
from rllm_core.errors import ConfigError

CORE_ONLY = "rllm"
"""The section that belongs to the core alone; a backend may have keys of its own in the others."""


def read_stored_config(run_folder: Path) -> RunConfig:
    """What a run was started with, from its ``config.yaml``.

    Raises:
        ConfigError: the file cannot be read, or was written by a version with other keys.
    """
    file = str(run_folder / FILE_NAME)
    tree = read_config(run_folder)
    values = {
        name: _known(section, tree[name]) if (section := section_of(RunConfig, name)) else tree[name]
        for name in RunConfig.model_fields
        if name in tree
    }
    values |= {CORE_ONLY: tree.get(CORE_ONLY, {})}
    try:
        return parse(RunConfig, values)
    except ValidationError as error:
        problem = as_config_error(describe(error, values, lambda path: file, known_keys(RunConfig)))
        raise ConfigError(problem.message, "It may come from another version of rllm-core.") from error


def _known(section: type[BaseModel], values: object) -> object:
    """A section's values without keys that are not the core's."""
    if not isinstance(values, dict):
        return values
    known = {key: value for key, value in values.items() if key in section.model_fields}
    return {key: _known(inner, value) if (inner := section_of(section, key)) else value for key, value in known.items()}
