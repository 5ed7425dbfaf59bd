"""The choices in a run's layers: plugin modules, plugins, profile and preset, and the layers that they bring.

The user's layers choose the backend, its profile, the environment and the objectives. These bring the layers below.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rllm.config.keys import known_keys
from rllm.config.layers import Layer, Tier, layer_from_keys
from rllm.config.merge import merge_layers
from rllm.config.missing_packages import require_packages
from rllm.config.packaged import base_layer, packaged_layers
from rllm.config.passes import derive_keys, share_keys
from rllm.config.paths import split_key
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
class Choices:
    """The backend and the layers below the user's."""

    backend: Any
    """The backend's plugin spec."""
    profile: str | None
    lower: Sequence[Layer]
    """Layers of the packages and of the environment, lowest first."""
    decided: dict[str, str]
    """Keys for whose values the layers were chosen."""
    merged: MergedValues
    """Values of all layers."""

    @property
    def schemas(self) -> tuple[type[BaseModel], type[BaseModel]]:
        """The core's schema and the backend's."""
        return RunConfig, self.backend.params


def read_choices(registry: Registry, user_layers: Sequence[Layer]) -> Choices:
    """Read the choices in the user's layers.

    Raises:
        ConfigError: a choice does not exist, or its package is missing.
    """
    chosen = _merge_over_defaults(user_layers)
    require_packages(registry, chosen.value)
    backend_name, environment_name = _name(BACKEND_KEY, chosen), _name(ENVIRONMENT_KEY, chosen)
    backend = _plugin(registry, "backend", backend_name, BACKEND_KEY, chosen)
    profile = _profile(chosen, backend)
    lower, above = packaged_layers(backend, profile), _objective_layers(registry, chosen.value(OBJECTIVE_KEY))
    decided = {BACKEND_KEY: backend_name, ENVIRONMENT_KEY: environment_name}

    def merge() -> MergedValues:
        return merge_layers([*lower, *above, *user_layers], (RunConfig, backend.params))

    if environment_name != NO_ENVIRONMENT:
        environment = _plugin(registry, "environment", environment_name, ENVIRONMENT_KEY, chosen)
        lower.append(layer_from_keys(environment.defaults, f"environment {environment.name}", Tier.ENVIRONMENT))
        if environment.recipes and isinstance(model := _read_model(merge(), backend), str):
            recipe = f"{backend.name}/{model}"
            if recipe in environment.recipes:
                origin = f"recipe {environment.name} {recipe}"
                lower.append(layer_from_keys(environment.recipes[recipe], origin, Tier.ENVIRONMENT))
                decided[backend.model_key] = model
    merged = merge()
    if (preset := merged.value(PRESET_KEY)) is not None:
        above.append(_preset_layer(preset, merged.origin(split_key(PRESET_KEY))))
        merged = merge()
    return Choices(backend, profile, [*lower, *above], decided, merged)


def chosen_backend(registry: Registry, user_layers: Sequence[Layer]) -> Any:
    """Return the plugin spec of the backend that user layers choose, before the composition.

    Raises:
        ConfigError: there is no such backend.
    """
    chosen = _merge_over_defaults(user_layers)
    return _plugin(registry, "backend", _name(BACKEND_KEY, chosen), BACKEND_KEY, chosen)


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


def _read_model(merged: MergedValues, backend: Any) -> Any:
    """Return the model. If it follows from other keys, these are shared first."""
    rows = [row for row in backend.derived_keys if row.native == backend.model_key]
    shared = share_keys(merged, backend.shared_keys if rows else ())
    return derive_keys(shared, rows, backend.params).value(backend.model_key)


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


def _plugin(registry: Registry, kind: str, name: str, key: str, chosen: MergedValues) -> Any:
    try:
        return registry.get(kind, name).plugin
    except PluginError as error:
        origin = chosen.origin(split_key(key))
        raise ConfigError(error.code, f"`{key}` (from {origin}): {error.message}", error.hint) from error


def _profile(chosen: MergedValues, backend: Any) -> str | None:
    """Return the profile that the user's layers choose.

    Raises:
        ConfigError: the backend has no such profile.
    """
    profile = chosen.value(PROFILE_KEY)
    if profile is None or (isinstance(profile, str) and profile in backend.profiles):
        return profile
    path = split_key(PROFILE_KEY)
    has = f"Its profiles: {', '.join(backend.profiles)}." if backend.profiles else "It has none: leave it out."
    raise ConfigError(
        "unknown-choice",
        f"{wrong_value(path, profile, chosen.origin(path))}, and backend {backend.name} has no such profile.",
        has,
    )


def _name(key: str, chosen: MergedValues) -> str:
    name = chosen.value(key)
    if not isinstance(name, str):
        path = split_key(key)
        raise ConfigError("wrong-value", f"{wrong_value(path, name, chosen.origin(path))}: expected text.")
    return name


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
    values = {name: merged.value(f"rllm.plugins.{name}") for name in PluginsSection.model_fields}
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
