"""Keys of a configuration schema: which exist, their defaults, which choose a plugin, and which have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from rllm.config.paths import KeyPath, split_key
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.section import Names, UsedIn

DEFAULT = "default"
"""Origin of a schema's default."""
ANY_KEY = "*"
"""Matches every key of a mapping in a pattern, as in ``rllm.algorithm.estimator_map.*``."""


@cache
def known_keys(schema: type[BaseModel]) -> tuple[KeyPath, ...]:
    """Return every section and key of a schema, each section before its keys."""
    return tuple(list_fields(schema))


@cache
def list_fields(schema: type[BaseModel]) -> dict[KeyPath, FieldInfo]:
    """Return every section and key of a schema with its field, each section before its keys."""
    return dict(_fields(schema, ()))


@cache
def value_keys(schema: type[BaseModel]) -> frozenset[KeyPath]:
    """Return the keys of a schema that are values and not sections."""
    fields = list_fields(schema)
    return frozenset(fields) - {path[:end] for path in fields for end in range(1, len(path))}


def key_around(schema: type[BaseModel], path: KeyPath) -> KeyPath | None:
    """The key of a schema that a path is, or leads into: ``data.train_dataset`` of ``data.train_dataset.name``."""
    ends = range(len(path), 0, -1)
    return next((path[:end] for end in ends if path[:end] in value_keys(schema)), None)


@cache
def choice_keys(schema: type[BaseModel]) -> frozenset[KeyPath]:
    """Return patterns of the keys that contain a plugin choice: a name, or a mapping with ``name`` and options."""
    patterns = set()
    for path, field in list_fields(schema).items():
        for variant in _variants(field.annotation):
            if get_origin(variant) is dict and _is_choice(get_args(variant)[1]):
                patterns.add((*path, ANY_KEY))
                inner = (mark.inner_choice for mark in field.metadata if isinstance(mark, Names))
                patterns |= {(*path, ANY_KEY, key) for key in inner if key}
        if _is_choice(field.annotation):
            patterns.add(path)
    return frozenset(patterns)


@cache
def plugin_keys(schema: type[BaseModel]) -> dict[KeyPath, str]:
    """Return the keys that choose plugins, with the kind of these plugins."""
    marks = ((path, mark) for path, field in list_fields(schema).items() for mark in field.metadata)
    return {path: mark.kind for path, mark in marks if isinstance(mark, Names)}


@cache
def named_sections(schema: type[BaseModel]) -> dict[KeyPath, str]:
    """Return the sections that choose a plugin by ``name`` and have its options next to it: section -> options key.

    For example, ``rllm.workflow`` has ``workflow_args`` and ``rllm.env`` has ``env_args``.
    """
    known = frozenset(known_keys(schema))
    return {
        path: f"{path[-1]}_args"
        for path in known
        if path and (*path, "name") in known and (*path, f"{path[-1]}_args") in known
    }


@cache
def always_sections(schema: type[BaseModel]) -> frozenset[KeyPath]:
    """Return the sections of a schema that cannot be null."""
    return frozenset(path for path, field in list_fields(schema).items() if _is_section(field.annotation))


def where_acts(schema: type[BaseModel], path: KeyPath) -> Literal["training", "rollout"] | None:
    """Return where a key is used, from the nearest mark on the key or a section above it. None if there is no mark."""
    fields = list_fields(schema)
    nearest = (fields[path[:depth]] for depth in range(len(path), 0, -1) if path[:depth] in fields)
    return next((mark.where for field in nearest for mark in field.metadata if isinstance(mark, UsedIn)), None)


def find_section(schema: type[BaseModel], key: str) -> type[BaseModel] | None:
    """Return the model of a section of a schema. None if the key is no section, or may have several models."""
    field = schema.model_fields.get(key)
    models = list(filter(_is_section, _variants(field.annotation))) if field else []
    return models[0] if len(models) == 1 else None


def fill_defaults(tree: dict[str, Any], schema: type[BaseModel], at: KeyPath = ()) -> list[KeyPath]:
    """Add the defaults of the keys of a schema that a tree lacks, and return the paths of the added values."""
    added: list[KeyPath] = []
    for name, field in schema.model_fields.items():
        key, section = field.alias or name, find_section(schema, name)
        factory: Any = field.default_factory
        if key in tree:
            if section is not None and isinstance(tree[key], dict):
                added += fill_defaults(tree[key], section, (*at, key))
        elif section is not None and factory is section:
            # An instance has the same values, but pydantic takes long to build a validator for each section.
            tree[key] = {}
            fill_defaults(tree[key], section)
            added.append((*at, key))
        elif not field.is_required():
            tree[key] = to_jsonable_python(field.get_default(call_default_factory=True), by_alias=True)
            added.append((*at, key))
    return added


def matches(path: KeyPath, patterns: frozenset[KeyPath]) -> bool:
    """True if a key matches one of the patterns. `ANY_KEY` in a pattern matches any part."""
    if path in patterns or (*path[:-1], ANY_KEY) in patterns:
        return True
    return (*path[:-2], ANY_KEY, *path[-1:]) in patterns


def covers(pattern: str, key: str) -> bool:
    """True if a key equals the pattern, or is in the section if the pattern is ``name.*``."""
    return key.startswith(pattern[:-1]) if pattern.endswith(".*") else key == pattern


def idle_reason(backend: Any, key: str, profile: str | None = None) -> str | None:
    """Return the key to set instead of a key without effect, as the backend declares it. None if the key has an effect.

    Args:
        backend: its plugin spec.
        key: dotted.
        profile: the run's profile. With None, keys that are unused only in one profile are ignored.
    """
    path = split_key(key)
    of_core = path in known_keys(RunConfig) or key_around(RunConfig, path) is not None
    if of_core or any(key == row.native for row in backend.shared_keys):
        return None
    idle = {**backend.unused_keys, **backend.unused_keys_by_profile.get(profile, {})}
    return next((text for name, text in idle.items() if covers(name, key)), None)


def same_value(one: Any, other: Any) -> bool:
    """True if two plain values are equal in YAML: 1 and 1.0 are, 0 and false are not."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _fields(schema: type[BaseModel], at: KeyPath) -> Iterator[tuple[KeyPath, FieldInfo]]:
    for name, field in schema.model_fields.items():
        path = (*at, field.alias or name)
        yield path, field
        for variant in _variants(field.annotation):
            if _is_section(variant) and variant is not schema:
                yield from _fields(variant, path)


def _is_section(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _is_choice(annotation: Any) -> bool:
    variants = _variants(annotation)
    return str in variants and dict[str, Any] in variants


def _variants(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Annotated:
        return _variants(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(variant for part in get_args(annotation) for variant in _variants(part))
    return (annotation,)
