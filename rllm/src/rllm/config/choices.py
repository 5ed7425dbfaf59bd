"""The choices in a run's layers: plugin modules, plugins, profile and preset, and the layers that they bring.

The user's layers choose the backend, its profile, the environment and the objectives. These bring the layers below.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rllm.config.environment_variables import from_environment
from rllm.config.keys import known_keys
from rllm.config.layers import Layer, Tier, layer_from_keys
from rllm.config.merge import merge_layers
from rllm.config.missing_packages import require_packages
from rllm.config.packaged import base_layer, packaged_layers
from rllm.config.passes import read_model, run_passes
from rllm.config.paths import KeyPath, split_key
from rllm.config.problems import as_config_error, describe, parse, wrong_value
from rllm.config.values import MergedValues
from rllm_core.contracts.objective import ObjectivePlugin
from rllm_core.errors import ConfigError, PluginError, RllmError, describe_error, did_you_mean
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.run_sections import NO_ENVIRONMENT, PluginsSection

BACKEND_KEY = "rllm.backend"
PROFILE_KEY = "rllm.profile"
ENVIRONMENT_KEY = "rllm.env.name"
OBJECTIVE_KEY = "rllm.objective"
DEFAULT_OBJECTIVE = "rllm-core/rl"
"""Objective of a run whose pipeline has no stage of an objective."""
SECTION = "rllm.algorithm.rollout_correction"
_GEOMETRIC = {"reject": {"seq_mean_k1": [0.999, 1.001]}}
_K3 = {"reject": {"seq_mean_k3": 0.01}}
_TOKEN, _SEQUENCE = {"tis_mode": "token"}, {"tis_mode": "sequence"}
PRESET_KEY = f"{SECTION}.preset"
PRESETS: dict[str, dict[str, Any]] = {
    "disabled": {},
    "bypass_ppo_clip": {"bypass_mode": True},
    "decoupled_token_is": _TOKEN,
    "decoupled_seq_is": _SEQUENCE,
    "decoupled_token_icepop": _TOKEN | {"tis_cap": 5.0, "tis_floor": 0.5, "tis_beyond_cap": "mask"},
    "decoupled_seq_is_rs": _SEQUENCE | {"reject": {"seq_sum_k1": [0.5, 2.0]}},
    "decoupled_geo_rs": _GEOMETRIC,
    "decoupled_geo_rs_seq_tis": _GEOMETRIC | _SEQUENCE,
    "decoupled_geo_rs_token_tis": _GEOMETRIC | _TOKEN,
    "decoupled_k3_rs": _K3,
    "decoupled_k3_rs_seq_tis": _K3 | _SEQUENCE,
    "decoupled_k3_rs_token_tis": _K3 | _TOKEN,
}
"""Keys of the section that each preset of rollout correction sets as defaults, as in verl 0.9.1."""


@dataclass(frozen=True)
class RunValues:
    """The backend of a run, and the values of all layers before validation."""

    backend: Any
    """The backend's plugin spec."""
    profile: str | None
    lower: Sequence[Layer]
    """Layers of the packages and of the environment, lowest first."""
    merged: MergedValues
    """Values of all layers, after `run_passes`."""
    tree: dict[str, Any]
    """Values of `merged`, resolved, with the defaults of the backend's schema."""
    from_environment: Mapping[KeyPath, tuple[Any, Any]]
    """Values that contain environment variables, see `from_environment`."""

    @property
    def schemas(self) -> tuple[type[BaseModel], type[BaseModel]]:
        """The core's schema and the backend's."""
        return RunConfig, self.backend.params


def merge_run(registry: Registry, user_layers: Sequence[Layer]) -> RunValues:
    """Merge the user's layers over the layers that their choices bring, run the passes, and resolve the values.

    Raises:
        ConfigError: a choice does not exist, its package is missing, or a value is wrong.
    """
    chosen = _merge_over_defaults(user_layers)
    require_packages(registry, chosen.early_value)
    backend, environment = _plugin(registry, "backend", BACKEND_KEY, chosen), None
    profile = _profile(chosen, backend)
    decided = {key: chosen.early_value(key) for key in (BACKEND_KEY, ENVIRONMENT_KEY)}
    objectives = chosen.early_value(OBJECTIVE_KEY)
    lower, above = packaged_layers(backend, profile), _objective_layers(registry, objectives)
    if decided[ENVIRONMENT_KEY] != NO_ENVIRONMENT:
        environment = _plugin(registry, "environment", ENVIRONMENT_KEY, chosen)
        lower.append(layer_from_keys(environment.defaults, f"environment {environment.name}", Tier.ENVIRONMENT))
    schemas = (RunConfig, backend.params)
    merged = merge_layers([*lower, *above, *user_layers], schemas)
    if environment and environment.recipes:
        model = read_model(merged, backend)
        if (recipe := f"{backend.name}/{model}") in environment.recipes:
            origin = f"recipe {environment.name} {recipe}"
            lower.append(layer_from_keys(environment.recipes[recipe], origin, Tier.ENVIRONMENT))
            decided[backend.model_key] = model
            merged = merge_layers([*lower, *above, *user_layers], schemas)
    if (preset := merged.early_value(PRESET_KEY)) is not None:
        above.append(_preset_layer(preset, merged.origin(split_key(PRESET_KEY))))
        merged = merge_layers([*lower, *above, *user_layers], schemas)
    merged = run_passes(merged, registry, backend, decided)
    tree = merged.resolve(backend.params)
    return RunValues(backend, profile, [*lower, *above], merged, tree, from_environment(merged.tree, tree))


def chosen_backend(registry: Registry, user_layers: Sequence[Layer]) -> Any:
    """Return the plugin spec of the backend that user layers choose, before the composition.

    Raises:
        ConfigError: there is no such backend.
    """
    chosen = _merge_over_defaults(user_layers)
    return _plugin(registry, "backend", BACKEND_KEY, chosen)


def chosen_objectives(registry: Registry, names: str | Sequence[str] | None) -> list[ObjectivePlugin]:
    """Return the objectives with these names, in order.

    Raises:
        ConfigError: no installed objective has the name.
    """
    listed = [names] if isinstance(names, str) else names or ()
    try:
        return [registry.get("objective", str(name)).plugin for name in listed]
    except PluginError as error:
        raise ConfigError(error.code, f"`{OBJECTIVE_KEY}`: {error.message}", error.hint) from error


def _merge_over_defaults(user_layers: Sequence[Layer]) -> MergedValues:
    """Return the user's values over the core's defaults, with which all other layers are chosen."""
    return merge_layers([base_layer(), *user_layers], [RunConfig])


def _objective_layers(registry: Registry, names: str | Sequence[str] | None) -> list[Layer]:
    """Return the default values of objectives, as layers under the user's values."""
    return [
        layer_from_keys(each.defaults, f"objective {each.name}", Tier.ENVIRONMENT)
        for each in chosen_objectives(registry, names)
        if each.defaults
    ]


def _preset_layer(name: object, origin: str) -> Layer:
    """Return the layer of a preset, which is lower than any value of the user.

    Raises:
        ConfigError: verl has no such preset, or it cannot be used here.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(
            "unknown-choice",
            f"`{SECTION}.preset` is {name!r} (from {origin}), which is not a preset.",
            did_you_mean(str(name), PRESETS) or f"Use one of {', '.join(PRESETS)}.",
        )
    values = {f"{SECTION}.{key}": value for key, value in PRESETS[name].items()}
    return layer_from_keys(values, f"preset {name}", Tier.ENVIRONMENT)


def _plugin(registry: Registry, kind: str, key: str, chosen: MergedValues) -> Any:
    name, path = chosen.early_value(key), split_key(key)
    if not isinstance(name, str):
        raise ConfigError("wrong-value", f"{wrong_value(path, name, chosen.origin(path))}: expected text.")
    try:
        return registry.get(kind, name).plugin
    except PluginError as error:
        raise ConfigError(error.code, f"`{key}` (from {chosen.origin(path)}): {error.message}", error.hint) from error


def _profile(chosen: MergedValues, backend: Any) -> str | None:
    """Return the profile that the user's layers choose.

    Raises:
        ConfigError: the backend has no such profile.
    """
    profile = chosen.early_value(PROFILE_KEY)
    if profile is None or (isinstance(profile, str) and profile in backend.profiles):
        return profile
    path = split_key(PROFILE_KEY)
    has = f"Its profiles: {', '.join(backend.profiles)}." if backend.profiles else "It has none: leave it out."
    raise ConfigError(
        "unknown-choice",
        f"{wrong_value(path, profile, chosen.origin(path))}, and backend {backend.name} has no such profile.",
        has,
    )


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
    merged = _merge_over_defaults(user_layers)
    values = {name: merged.early_value(f"rllm.plugins.{name}") for name in PluginsSection.model_fields}
    try:
        return parse(PluginsSection, values)
    except ValidationError as error:
        lines = describe(error, values, merged.origin, known_keys(RunConfig), at=("rllm", "plugins"))
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
            f"Module {name!r} of `rllm.plugins.import_modules` cannot be imported: "
            f"{describe_error(error).rstrip('.')}.",
            f"Correct that line. To check it, run: python -c 'import {name}'",
        )
    return ConfigError(
        "module-not-found",
        f"`rllm.plugins.import_modules` names {name!r}, and there is no such module.",
        f"Write {name.removesuffix('.py')!r} as in `import NAME`. The current directory is {Path.cwd()}.",
    )
