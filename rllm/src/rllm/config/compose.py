"""Compose a configuration: merge all sources of values in order, and validate the result.

From lowest to highest: the defaults of the core's schema, the backend's YAML file, the environment's defaults, its
recipe for the chosen model, the chosen preset of rollout correction, ``--config`` files in order, the command line.

The user's layers choose the backend, the environment and the model (or keys from which the backend derives it). So
they are merged first, and the layers of the chosen parts are then put beneath them. Finally, the backend's shared keys
get the same values as the core's, and derived keys are set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import getitem
from typing import Any

from pydantic import BaseModel, ValidationError

from rllm.config.correction_presets import SECTION, preset_layer
from rllm.config.deriving import derive_keys
from rllm.config.keys import find_section, known_keys
from rllm.config.layers import Layer, Tier, layer_from_dotted
from rllm.config.merge import MISSING, Merged, Origin, merge_layers
from rllm.config.needed import require_packages
from rllm.config.objectives import OBJECTIVE_KEY, objective_layers
from rllm.config.options_as_keys import option_hints
from rllm.config.packaged import DEFAULT, base_layer, fill_defaults, packaged_layers
from rllm.config.packaged_keys import unlike_packaged
from rllm.config.paths import ABSENT, KeyPath, leaves, picked, split_key, value_at
from rllm.config.problems import (
    ConfigLine,
    as_config_error,
    describe,
    expected_mapping,
    parse,
    typed_value,
    wrong_value,
)
from rllm.config.resolve import environment_hidden, format_tree, from_environment, resolve, resolve_interpolations
from rllm.config.sharing import put_shared, share_keys
from rllm.config.unused import idle_reason
from rllm.config.whole import NUMBERED, UNUSED, as_whole, changed_since, given_layers, is_whole
from rllm_core.contracts.backend import SharedKey
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.run_sections import NO_ENVIRONMENT, PluginsSection

BACKEND_KEY = "rllm.backend"
PROFILE_KEY = "rllm.profile"
ENVIRONMENT_KEY = "rllm.env.name"
PRESET_KEY = f"{SECTION}.preset"


@dataclass(frozen=True)
class Composed:
    """A complete, validated configuration."""

    config: RunConfig
    """The core's sections."""
    backend_config: BaseModel
    """The backend's sections: an instance of its record's `params`."""
    tree: dict[str, Any]
    """Every value of both, resolved, as plain data."""
    origins: dict[str, str]
    """Origin of every value of `tree`: dotted key -> ``default``, ``backend local``, a file, ``command line``."""
    tiers: dict[str, Tier]
    """How every value of `tree` came about, by dotted key."""
    warnings: tuple[str, ...] = ()
    unused_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Tree of the values that the backend's unused keys would have if the user did not set them."""
    from_environment: Mapping[KeyPath, tuple[Any, Any]] = field(default_factory=dict)
    """Values that contain environment variables, and so perhaps secrets: as the user wrote them, and resolved."""
    unused: tuple[KeyPath, ...] = ()
    """Keys that were set back to their defaults, because nothing in the run would use their values."""
    user_layers: tuple[Layer, ...] = ()
    """The layers that were composed in addition to those from packages and the environment, lowest first."""

    @property
    def by_user(self) -> frozenset[str]:
        """Dotted keys whose values a user set for this run, and not a package, an environment or an earlier run."""
        return frozenset(key for key, tier in self.tiers.items() if tier >= Tier.USER)

    @property
    def by_user_before(self) -> frozenset[str]:
        """Dotted keys of a resumed run whose values a user set at an earlier start."""
        return frozenset(key for key, tier in self.tiers.items() if tier is Tier.SAVED)

    @property
    def printable_tree(self) -> dict[str, Any]:
        """`tree` as it may be saved and shown, see `format_tree`."""
        return format_tree(self.tree, self.from_environment)

    def build_saved_config(self) -> dict[str, Any]:
        """Return `printable_tree` and the layers it was made from, for ``config.yaml`` and `build_train_config`."""
        return as_whole(self.printable_tree, [*self.user_layers, Layer(UNUSED, picked(self.tree, self.unused))])

    def value(self, key: str) -> Any:
        """Return the value of a dotted key."""
        return reduce(getitem, split_key(key), self.tree)

    def beneath(self, key: str) -> list[str]:
        """Return the dotted keys of a key's values: the key itself, or all keys inside its mapping."""
        return [key] if key in self.origins else [name for name in self.origins if name.startswith(f"{key}.")]

    def origin(self, key: str) -> str:
        """Return the origin of a key's value. For a mapping with several origins, return all of them."""
        return ", ".join(dict.fromkeys(self.origins[name] for name in self.beneath(key)))

    def is_by_user(self, key: str) -> bool:
        """True if a user set the key, or a key inside its mapping, for this run."""
        return any(self.tiers[name] >= Tier.USER for name in self.beneath(key))

    def describe(self, key: str) -> str:
        """Return the beginning of a message about a value, such as ``"`rllm.rollout.n` is 4 (from my.yaml)"``."""
        text, _ = self.from_environment.get(split_key(key), (self.value(key), None))
        return wrong_value(split_key(key), text, self.origin(key))


def compose(registry: Registry, user_layers: Sequence[Layer] = ()) -> Composed:
    """Merge, resolve and validate. `user_layers` are the user's files and command-line words, lowest first.

    Raises ConfigError for everything that is wrong with a value, a key or a file, and with the choice of a plugin.
    """
    layers = [part for layer in user_layers for part in _open_whole(layer, registry)]
    settled = _settle(registry, layers)
    with environment_hidden(settled.from_environment):
        if problems := unlike_packaged(settled.tree, settled.merged, settled.backend, settled.profile):
            raise as_config_error(problems)
        composed = _validate(registry, settled)
    unused = [split_key(key) for key in composed.by_user if idle_reason(settled.backend, key)]
    return replace(
        composed,
        unused_defaults=_values_without_user(settled, layers, unused) if unused else {},
        from_environment=settled.from_environment,
        user_layers=tuple(layers),
    )


@dataclass(frozen=True)
class _Settled:
    """The values of a run before validation, with the plugins that the user's layers choose."""

    backend: Any
    """Its plugin spec."""
    profile: str | None
    lower: Sequence[Layer]
    """Layers of the packages and of the environment."""
    merged: Merged
    tree: dict[str, Any]
    """Values of `merged`, resolved."""
    from_environment: Mapping[KeyPath, tuple[Any, Any]]
    warnings: tuple[str, ...]

    @property
    def schemas(self) -> tuple[type[BaseModel], type[BaseModel]]:
        """The core's schema and the backend's."""
        return RunConfig, self.backend.params


def _settle(registry: Registry, user_layers: Sequence[Layer]) -> _Settled:
    """Merge the user's layers over the layers of the plugins that they choose, and resolve the values."""
    chosen = merge_layers([base_layer(), *user_layers], [RunConfig])
    require_packages(registry, lambda key: _selected(chosen, key))
    backend_name, environment_name = _name(BACKEND_KEY, chosen), _name(ENVIRONMENT_KEY, chosen)
    backend = _plugin(registry, "backend", backend_name, BACKEND_KEY, chosen)
    profile = _profile(chosen, backend)
    schemas = (RunConfig, backend.params)
    lower = packaged_layers(backend, profile)
    decided = {BACKEND_KEY: backend_name, ENVIRONMENT_KEY: environment_name}
    if environment_name != NO_ENVIRONMENT:
        environment = _plugin(registry, "environment", environment_name, ENVIRONMENT_KEY, chosen)
        lower.append(layer_from_dotted(environment.defaults, f"environment {environment.name}", Tier.ENVIRONMENT))
        model = _chosen_model(merge_layers([*lower, *user_layers], schemas), backend)
        recipe = f"{backend.name}/{model}"
        if isinstance(model, str) and recipe in environment.recipes:
            origin = f"recipe {environment.name} {recipe}"
            lower.append(layer_from_dotted(environment.recipes[recipe], origin, Tier.ENVIRONMENT))
            decided[backend.model_key] = model
    lower += objective_layers(registry, _selected(chosen, OBJECTIVE_KEY))

    merged = merge_layers([*lower, *user_layers], schemas)
    if (preset := _selected(merged, PRESET_KEY)) is not None:
        lower.append(preset_layer(preset, merged.origin(split_key(PRESET_KEY))))
        merged = merge_layers([*lower, *user_layers], schemas)
    warnings = share_keys(merged, backend.shared_keys)
    _settle_length_of_training(merged, backend.shared_keys)
    derive_keys(merged, backend.derived_keys, backend.params)
    _require_unchanged(merged, decided)
    _require_own_sections(merged, backend, registry)
    tree = resolve(merged)
    merged.marks |= dict.fromkeys(fill_defaults(tree, backend.params), Origin(DEFAULT, Tier.PACKAGED))
    return _Settled(backend, profile, lower, merged, tree, from_environment(merged, tree), tuple(warnings))


def _values_without_user(settled: _Settled, layers: Sequence[Layer], keys: Sequence[KeyPath]) -> dict[str, Any]:
    """Return the values that keys of the backend would have if the user did not set them, with all others unchanged."""
    backend = settled.backend
    lower = merge_layers([*settled.lower, *(each for each in layers if each.tier < Tier.USER)], settled.schemas)
    fill_defaults(lower.tree, backend.params)
    derived = {split_key(row.native) for row in backend.derived_keys}
    known = [path for path in keys if path in derived or value_at(lower.tree, path) is not ABSENT]
    merged = Merged(deepcopy(settled.merged.tree), dict(settled.merged.marks))
    for path in known:
        value = value_at(lower.tree, path)
        merged.put(path, None if value is ABSENT else value, DEFAULT, lower.tier(path))
    derive_keys(merged, backend.derived_keys, backend.params)
    return picked(resolve_interpolations(merged), known)


def _open_whole(layer: Layer, registry: Registry) -> list[Layer]:
    """Split a whole configuration into its user's layers and a layer of later changes. Other layers stay unchanged."""
    if not is_whole(layer):
        return [layer]
    stored = given_layers(layer)
    given = [each for each in stored if each.origin != UNUSED]
    now = _settle(registry, given)
    # If a caller resolved the interpolations of a whole configuration, it contains values instead of interpolations.
    same = [format_tree(now.tree, now.from_environment), now.tree, *(each.tree for each in stored if each not in given)]
    return [*(each for each in given if each.origin != NUMBERED), changed_since(layer, same)]


def _chosen_model(merged: Merged, backend: Any) -> Any:
    """Return the model. If it follows from other keys, these are first computed in `merged`."""
    if rows := [row for row in backend.derived_keys if row.native == backend.model_key]:
        share_keys(merged, backend.shared_keys)
        derive_keys(merged, rows, backend.params)
    return _selected(merged, backend.model_key)


def plugins_section(user_layers: Sequence[Layer]) -> PluginsSection:
    """Return the section ``rllm.plugins``. The registry for the composition depends on it."""
    merged = merge_layers([base_layer(), *user_layers], [RunConfig])
    values = {name: _selected(merged, f"rllm.plugins.{name}") for name in PluginsSection.model_fields}
    try:
        return parse(PluginsSection, values)
    except ValidationError as error:
        lines = describe(error, values, merged.origin, known_keys(RunConfig), at=("rllm", "plugins"))
        raise as_config_error(lines) from error


def chosen_backend(registry: Registry, user_layers: Sequence[Layer]) -> Any:
    """Return the plugin spec of the backend that user layers choose, before the composition.

    Raises:
        ConfigError: there is no such backend.
    """
    merged = merge_layers([base_layer(), *user_layers], [RunConfig])
    return _plugin(registry, "backend", _name(BACKEND_KEY, merged), BACKEND_KEY, merged)


def _validate(registry: Registry, settled: _Settled) -> Composed:
    tree, merged = settled.tree, settled.merged
    keys = tuple(dict.fromkeys(key for schema in settled.schemas for key in known_keys(schema)))
    instances: list[BaseModel] = []
    problems: list[ConfigLine] = []
    meant: list[str] = []
    for schema, values in zip(settled.schemas, _split(tree, *settled.schemas), strict=True):
        try:
            instances.append(parse(schema, values))
        except ValidationError as error:
            problems += describe(error, values, merged.origin, keys)
            meant += option_hints(error, registry)
    if problems:
        raise as_config_error(problems, " ".join(meant))
    config, backend_config = instances
    assert isinstance(config, RunConfig)
    paths = [path for path, _ in leaves(tree)]
    origins = {".".join(path): merged.origin(path) for path in paths}
    tiers = {".".join(path): merged.tier(path) for path in paths}
    return Composed(config, backend_config, tree, origins, tiers, settled.warnings)


def _split(
    tree: dict[str, Any], core_schema: type[BaseModel], backend_schema: type[BaseModel]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the core's part and the backend's part. A shared section is split: the core takes its own keys."""
    core: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for key, value in tree.items():
        ours, theirs = find_section(core_schema, key), find_section(backend_schema, key)
        if key not in core_schema.model_fields:
            rest[key] = value
        elif ours and theirs and isinstance(value, dict):
            core[key], rest[key] = _split(value, ours, theirs)
        else:
            core[key] = value
    return core, rest


def _settle_length_of_training(merged: Merged, shared: Sequence[SharedKey]) -> None:
    """Use either epochs or steps: of the two keys for the length of a run, only the one from the higher tier applies.

    The core's key and the backend's native key for the same setting agree already, and this keeps them equal.
    """
    epochs, batches = "rllm.trainer.total_epochs", "rllm.trainer.total_batches"
    if _selected(merged, batches) == -1:
        return
    by_epochs, by_batches = (merged.tier(split_key(key)) for key in (epochs, batches))
    if by_epochs > by_batches:
        put_shared(merged, shared, batches, -1, merged.origin(split_key(epochs)), by_epochs)
    elif by_batches > by_epochs:
        put_shared(merged, shared, epochs, RunConfig().rllm.trainer.total_epochs, DEFAULT, Tier.PACKAGED)


def _selected(merged: Merged, key: str) -> Any:
    """Return the value of a key before everything is resolved. None if it has no value yet."""
    node: Any = merged.tree
    path = split_key(key)
    for depth, part in enumerate(path):
        if not isinstance(node, dict):
            raise expected_mapping(path[:depth], node, merged.origin(path[:depth]))
        if part not in node:
            return None
        node = node[part]
        if isinstance(node, str) and "${" in node:
            return _selected(Merged(resolve_interpolations(merged), merged.marks), key)
    return None if node == MISSING else node


def _plugin(registry: Registry, kind: str, name: str, key: str, merged: Merged) -> Any:
    try:
        return registry.get(kind, name).plugin
    except PluginError as error:
        origin = merged.origin(split_key(key))
        raise ConfigError(error.code, f"`{key}` (from {origin}): {error.message}", error.hint) from error


def _profile(chosen: Merged, backend: Any) -> str | None:
    """Return the profile that the user's layers choose.

    Raises:
        ConfigError: the backend has no such profile.
    """
    profile = _selected(chosen, PROFILE_KEY)
    if profile is None or (isinstance(profile, str) and profile in backend.profiles):
        return profile
    path = split_key(PROFILE_KEY)
    has = f"Its profiles: {', '.join(backend.profiles)}." if backend.profiles else "It has none: leave it out."
    raise ConfigError(
        "unknown-choice",
        f"{wrong_value(path, profile, chosen.origin(path))}, and backend {backend.name} has no such profile.",
        has,
    )


def _require_unchanged(merged: Merged, decided: Mapping[str, str]) -> None:
    """Check that the choices made from the user's layers are unchanged. If not, the wrong layers were merged."""
    for key, value in decided.items():
        if (now := _selected(merged, key)) != value:
            origin = merged.origin(split_key(key))
            raise ConfigError(
                "backend-mismatch",
                f"`{key}` is {value!r} by the user's choice, but {origin} sets it to {now!r}.",
                "Only a configuration file or the command line may choose it.",
            )


def _require_own_sections(merged: Merged, backend: Any, registry: Registry) -> None:
    """Check that each section belongs to this run.

    Raises:
        ConfigError: a section lacks the prefix ``rllm.``, or belongs to a different backend.
    """
    known = known_keys(RunConfig)
    values = set(known) - {path[:depth] for path in known for depth in range(1, len(path))}
    for key, value in merged.tree.items():
        if key in RunConfig.model_fields or key in backend.params.model_fields:
            continue
        # This comes first even if a different backend has the section, because the keys may be the core's.
        given = [(("rllm", *path), leaf) for path, leaf in leaves({key: value})]
        if meant := [
            f"{'.'.join(path)}{typed_value(leaf)}"
            for path, leaf in given
            if any(path[:depth] in values for depth in range(len(path) + 1))
        ]:
            raise ConfigError(
                "unknown-key",
                f"`{key}` (from {merged.origin((key,))}) is not a section of a run with backend {backend.name}.",
                f"Write {' and '.join(f'`{key}`' for key in meant)}.",
            )
        owners = [entry.plugin.name for entry in registry.all("backend") if key in entry.plugin.params.model_fields]
        if owners:
            raise ConfigError(
                "section-of-other-backend",
                f"`{key}` (from {merged.origin((key,))}) belongs to backend {' and '.join(owners)}, and this run has "
                f"backend {backend.name}.",
                f"Add --backend {owners[0]}, or remove `{key}`.",
            )


def _name(key: str, merged: Merged) -> str:
    name = _selected(merged, key)
    if not isinstance(name, str):
        path = split_key(key)
        raise ConfigError("wrong-value", f"{wrong_value(path, name, merged.origin(path))}: expected text.")
    return name
