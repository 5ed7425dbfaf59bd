"""Compose a configuration: merge all sources of values in order, and validate the result.

From lowest to highest: the defaults of the core's schema, the backend's YAML file, the environment's defaults, its
recipe for the chosen model, the chosen preset of rollout correction, ``--config`` files in order, the command line.

The user's layers choose which other layers are below them. `merge_run` merges all layers, and `run_passes` follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import getitem
from typing import Any

from pydantic import BaseModel, ValidationError

from rllm.config.choices import RunValues, merge_run
from rllm.config.environment_variables import format_tree, hide_environment
from rllm.config.external_sections import compare_with_packaged_values
from rllm.config.keys import DEFAULT, fill_defaults, find_section, idle_reason, known_keys
from rllm.config.layers import Layer, Tier
from rllm.config.merge import merge_layers
from rllm.config.passes import derive_keys
from rllm.config.paths import ABSENT, KeyPath, leaves, pick_keys, split_key, value_at
from rllm.config.problems import ConfigLine, as_config_error, describe, option_hints, parse, wrong_value
from rllm.config.saved_config import NUMBERED, UNUSED, add_layers, changed_since, is_saved_config, stored_layers
from rllm.config.values import Entry
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig


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
        return add_layers(self.printable_tree, [*self.user_layers, Layer(UNUSED, pick_keys(self.tree, self.unused))])

    def value(self, key: str) -> Any:
        """Return the value of a dotted key."""
        return reduce(getitem, split_key(key), self.tree)

    def keys_below(self, key: str) -> list[str]:
        """Return the dotted keys of a key's values: the key itself, or all keys inside its mapping."""
        return [key] if key in self.origins else [name for name in self.origins if name.startswith(f"{key}.")]

    def origin(self, key: str) -> str:
        """Return the origin of a key's value. For a mapping with several origins, return all of them."""
        return ", ".join(dict.fromkeys(self.origins[name] for name in self.keys_below(key)))

    def is_by_user(self, key: str) -> bool:
        """True if a user set the key, or a key inside its mapping, for this run."""
        return any(self.tiers[name] >= Tier.USER for name in self.keys_below(key))

    def describe(self, key: str) -> str:
        """Return the beginning of a message about a value, such as ``"`rllm.rollout.n` is 4 (from my.yaml)"``."""
        text, _ = self.from_environment.get(split_key(key), (self.value(key), None))
        return wrong_value(split_key(key), text, self.origin(key))


def compose(registry: Registry, user_layers: Sequence[Layer] = ()) -> Composed:
    """Merge, resolve and validate. `user_layers` are the user's files and command-line words, lowest first.

    Raises ConfigError for everything that is wrong with a value, a key or a file, and with the choice of a plugin.
    """
    layers = [part for layer in user_layers for part in _split_saved_layer(layer, registry)]
    run = merge_run(registry, layers)
    with hide_environment(run.from_environment):
        if problems := compare_with_packaged_values(run.tree, run.merged, run.backend, run.profile):
            raise as_config_error(problems)
        composed = _validate(registry, run)
    unused = [key for key in composed.by_user if idle_reason(run.backend, key)]
    return replace(
        composed,
        unused_defaults=_values_without_user(run, layers, unused) if unused else {},
        from_environment=run.from_environment,
        user_layers=tuple(layers),
    )


def _values_without_user(run: RunValues, layers: Sequence[Layer], keys: Sequence[str]) -> dict[str, Any]:
    """Return the values that keys of the backend would have if the user did not set them, with all others unchanged."""
    backend = run.backend
    lower = merge_layers([*run.lower, *(each for each in layers if each.tier < Tier.USER)], run.schemas)
    fill_defaults(lower.tree, backend.params)
    texts = {key: value_at(lower.tree, split_key(key)) for key in keys}
    texts |= {row.native: None for row in backend.derived_keys if texts.get(row.native) is ABSENT}
    entries = [
        Entry(key, None, text, DEFAULT, lower.tier(split_key(key))) for key, text in texts.items() if text is not ABSENT
    ]
    merged = derive_keys(run.merged.replace_entries(entries), backend.derived_keys, backend.params)
    tree = merged.resolve_interpolations()
    return pick_keys(tree, [split_key(entry.key) for entry in entries])


def _split_saved_layer(layer: Layer, registry: Registry) -> list[Layer]:
    """Split a saved configuration into its user's layers and a layer of later changes. Other layers stay unchanged."""
    if not is_saved_config(layer):
        return [layer]
    stored = stored_layers(layer)
    given = [each for each in stored if each.origin != UNUSED]
    now = merge_run(registry, given)
    # If a caller resolved the interpolations of a saved configuration, it contains values instead of interpolations.
    same = [format_tree(now.tree, now.from_environment), now.tree, *(each.tree for each in stored if each not in given)]
    return [*(each for each in given if each.origin != NUMBERED), changed_since(layer, same)]


def _validate(registry: Registry, run: RunValues) -> Composed:
    tree, merged, schemas = run.tree, run.merged, run.schemas
    keys = tuple(dict.fromkeys(key for schema in schemas for key in known_keys(schema)))
    instances: list[BaseModel] = []
    problems: list[ConfigLine] = []
    hints: list[str] = []
    for schema, part in zip(schemas, _split(tree, *schemas), strict=True):
        try:
            instances.append(parse(schema, part))
        except ValidationError as error:
            problems += describe(error, part, merged.origin, keys)
            hints += option_hints(error, registry)
    if problems:
        raise as_config_error(problems, " ".join(hints))
    config, backend_config = instances
    assert isinstance(config, RunConfig)
    marks = {".".join(path): merged.mark(path) for path, _ in leaves(tree)}
    origins = {key: mark.label for key, mark in marks.items()}
    tiers = {key: mark.tier for key, mark in marks.items()}
    return Composed(config, backend_config, tree, origins, tiers, merged.warnings)


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
