"""The registry of a run. Which plugins may load and which modules register some is settled before all else."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

from pydantic import ValidationError

from rllm.config.choices import Reader
from rllm.config.keys import known_keys
from rllm.config.layers import Layer
from rllm.config.packaged import base_layer
from rllm.config.problems import as_config_error, describe, parse
from rllm_core.errors import ConfigError, RllmError, described
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.run_sections import PluginsSection


def registry_for(user_layers: Sequence[Layer]) -> Registry:
    """Return the installed plugins that the user layers allow, and the plugins registered by the modules they list.

    Raises:
        ConfigError: a key of ``rllm.plugins`` is wrong, or a module cannot be imported.
        PluginError: a module registers an object that cannot be used.
    """
    section = plugins_section(user_layers)
    import_modules(section.import_modules)
    return Registry.load(allow=section.allow)


def plugins_section(user_layers: Sequence[Layer]) -> PluginsSection:
    """Return the section ``rllm.plugins``. The registry for the composition depends on it."""
    reader = Reader([base_layer(), *user_layers], [RunConfig])
    values = {name: reader.value(f"rllm.plugins.{name}") for name in PluginsSection.model_fields}
    try:
        return parse(PluginsSection, values)
    except ValidationError as error:
        lines = describe(error, values, reader.origin, known_keys(RunConfig), at=("rllm", "plugins"))
        raise as_config_error(lines) from error


def import_modules(names: Iterable[str]) -> None:
    """Import modules of the current directory, as ``python -m`` would, or of installed packages."""
    for name in names:
        directory = str(Path.cwd())
        if not {directory, ""}.intersection(sys.path):
            sys.path.insert(0, directory)
        try:
            import_module(name)
        except RllmError:
            raise
        except (Exception, SystemExit) as error:
            raise _import_error(name, error) from error


def _import_error(name: str, error: BaseException) -> ConfigError:
    is_name = all(part.isidentifier() for part in name.split("."))
    if is_name and getattr(error, "name", None) not in (name, name.partition(".")[0]):
        return ConfigError(
            "plugin-failed",
            f"Module {name!r} of `rllm.plugins.import_modules` cannot be imported: {described(error).rstrip('.')}.",
            f"Correct that line. To check it, run: python -c 'import {name}'",
        )
    return ConfigError(
        "module-not-found",
        f"`rllm.plugins.import_modules` names {name!r}, and there is no such module.",
        f"Write {name.removesuffix('.py')!r} as in `import NAME`. The current directory is {Path.cwd()}.",
    )
