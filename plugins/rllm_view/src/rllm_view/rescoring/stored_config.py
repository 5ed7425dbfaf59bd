"""The core's part of a run's saved configuration, and what it means for a replay, which has the core's stages only.

The backend's part is not looked at: it need not be installed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ValidationError

from rllm.config import (
    FILE_NAME,
    as_config_error,
    describe,
    find_section,
    import_modules,
    known_keys,
    parse,
    read_config,
)
from rllm_core.errors import ConfigError
from rllm_core.pipeline import BUILT_IN
from rllm_core.plugins.registry import Registry
from rllm_core.schema.algorithm_sections import PipelineSection
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.section import Choice

CORE_ONLY = "rllm"
"""Section of config that only the core defines. A backend may add keys to the other sections."""

OPTIONAL = frozenset({"compact_filter"})
"""Stages that a replay does not need. The other stages compute the estimators' inputs."""


def read_stored_config(run_folder: Path) -> RunConfig:
    """Return a run's configuration, from its ``config.yaml``.

    Raises:
        ConfigError: the file cannot be read, or a version with other keys wrote it.
    """
    file = str(run_folder / FILE_NAME)
    tree = read_config(run_folder)
    values = {
        name: _known(section, tree[name]) if (section := find_section(RunConfig, name)) else tree[name]
        for name in RunConfig.model_fields
        if name in tree
    }
    values |= {CORE_ONLY: tree.get(CORE_ONLY, {})}
    try:
        return parse(RunConfig, values)
    except ValidationError as error:
        problem = as_config_error(describe(error, values, lambda path: file, known_keys(RunConfig)))
        raise ConfigError(problem.code, problem.message, "It may come from another version of rllm-core.") from error


def stored_registry(config: RunConfig, modules: Sequence[str] = ()) -> Registry:
    """Return the run's plugins that are installed here or can be imported here.

    Args:
        config: the run's config.
        modules: modules to import in addition to the run's modules.

    Raises:
        ConfigError: a module cannot be imported.
        PluginError: a module registers an invalid plugin.
    """
    import_modules([*config.rllm.plugins.import_modules, *modules])
    return Registry.load(allow=config.rllm.plugins.allow)


def third_party_stages(settings: PipelineSection) -> tuple[str, ...]:
    """Stages of the run that are not the core's, by name."""
    placed = [*(settings.stages or ()), *(edit["stage"] for edit in settings.insert), *settings.replace.values()]
    return tuple(name for name in dict.fromkeys(map(_name, placed)) if name not in BUILT_IN)


def left_out_stages(settings: PipelineSection) -> frozenset[str]:
    """Optional stages of the core that the run did not have."""
    listed = BUILT_IN if settings.stages is None else tuple(map(_name, settings.stages))
    had = set(listed) - set(settings.remove) - set(settings.replace)
    return OPTIONAL - had


def _known(section: type[BaseModel], values: object) -> object:
    """A section's values without keys that are not the core's."""
    if not isinstance(values, dict):
        return values
    known = {key: value for key, value in values.items() if key in section.model_fields}
    return {
        key: _known(inner, value) if (inner := find_section(section, key)) else value for key, value in known.items()
    }


def _name(choice: Choice) -> str:
    name = choice if isinstance(choice, str) else str(choice.get("name", ""))
    return name.removeprefix("rllm-core/")
