"""What a plugin's record says about it, in words for people: its kind's own facts, and its options."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rllm_core.contracts.plugin import Plugin

_COMMON = {field.name for field in fields(Plugin)}


class Option(NamedTuple):
    """One option. `default` is ``required`` when there is none."""

    name: str
    type: str
    default: str
    description: str


def facts_of(plugin: Plugin[Any]) -> dict[str, str]:
    """What the record says beyond what all kinds say: a level and a scope, what it needs, what it can do, …"""
    return dict(_facts(plugin))


def _facts(record: Any) -> Iterator[tuple[str, str]]:
    for field in fields(record):
        value = getattr(record, field.name)
        value = value() if callable(value) and field.name not in _COMMON else value
        if field.name in _COMMON or value is None:
            continue
        if is_dataclass(value):
            yield from _facts(value)
        elif not isinstance(value, Mapping):
            yield field.name.replace("_", " "), _words(value)
        elif value:
            yield field.name.replace("_", " "), ", ".join(f"{key}: {_words(inner)}" for key, inner in value.items())


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, frozenset | set):
        return ", ".join(sorted(value)) or "nothing"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_words(inner)}" for key, inner in value.items()) + "}"
    return str(value)


def options_of(model: type[BaseModel], prefix: str = "") -> Iterator[Option]:
    """All options of a model; those of a nested model as ``section.option``."""
    for field_name, field in model.model_fields.items():
        name = prefix + (field.alias or field_name)
        nested = field.annotation
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            yield from options_of(nested, f"{name}.")
        else:
            yield Option(name, _limits(_type_name(nested), field), _default(field), field.description or "")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def _type_name(annotation: Any) -> str:
    """``float``, ``str or null``, ``one of a, b``: as one would say it to someone who writes YAML."""
    if annotation is None or annotation is type(None):
        return "null"
    origin = get_origin(annotation)
    if origin is Literal:
        return "one of " + ", ".join(str(value) for value in get_args(annotation))
    if origin in (Union, types.UnionType):
        return " or ".join(_type_name(part) for part in get_args(annotation))
    if isinstance(annotation, type) and origin is None:
        return annotation.__name__
    return re.sub(r"\b(typing|collections\.abc)\.", "", str(annotation))


def _limits(type_name: str, field: FieldInfo) -> str:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    limits = [
        f"{sign} {getattr(constraint, attribute)}"
        for constraint in field.metadata
        for attribute, sign in signs.items()
        if getattr(constraint, attribute, None) is not None
    ]
    return " ".join([type_name, ", ".join(limits)]).strip()
