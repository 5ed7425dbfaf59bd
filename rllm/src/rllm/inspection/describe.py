"""Describe a schema: type, default and meaning of its keys for people, and a JSON schema for editors."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from rllm_core.schema.run_config import RunConfig

_SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
_WORDS = {
    "bool": "true or false",
    "int": "whole number",
    "float": "number",
    "str": "text",
    "Path": "path",
    "dict": "mapping",
}


class Option(NamedTuple):
    """One option. `default` is ``required`` when there is none."""

    name: str
    type: str
    default: str
    description: str


def list_options(model: type[BaseModel], prefix: str = "") -> Iterator[Option]:
    """Yield all options of a model. Options of a nested model are named ``section.option``."""
    fill_descriptions(model)
    for field_name, field in model.model_fields.items():
        name = prefix + (field.alias or field_name)
        if (nested := section_of(field)) is not None:
            yield from list_options(nested, f"{name}.")
        else:
            yield describe_field(name, field)


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a section. None if the field is a key."""
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


@cache
def fill_descriptions(model: type[BaseModel]) -> None:
    """Set the descriptions of a model's fields, and of its sections' fields, to the docstrings below them.

    Runs do not need descriptions, and pydantic's `use_attribute_docstrings` would parse the source in every run.
    """
    docstrings: dict[str, str] = {}
    for base in reversed(model.__mro__):
        docstrings |= dict(_field_docstrings(base))
    for name, field in model.model_fields.items():
        field.description = field.description or docstrings.get(name)
        if (section := section_of(field)) is not None:
            fill_descriptions(section)


def _field_docstrings(model: type) -> Iterator[tuple[str, str]]:
    definition = _classes_in(model.__module__).get(model.__name__)
    for field, text in pairwise(definition.body if definition else ()):
        value = text.value if isinstance(text, ast.Expr) else None
        if isinstance(field, ast.AnnAssign) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield ast.unparse(field.target), " ".join(value.value.split())


@cache
def _classes_in(module: str) -> Mapping[str, ast.ClassDef]:
    """Return the classes of a module by name. It is empty for a module without source, such as a notebook."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError):
        return {}
    return {node.name: node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)}


def describe_field(name: str, field: FieldInfo) -> Option:
    """Return the description of a key of a schema."""
    words = type_text(field.annotation)
    null = " or null" if words.endswith(" or null") else ""
    limited = _limits(words.removesuffix(" or null"), field.metadata) + null
    return Option(name, limited, _default(field), field.description or "")


def type_text(annotation: Any) -> str:
    """Return a type in terms of YAML, such as ``number or null``, ``one of a, b`` or ``list of text``."""
    if annotation is None or annotation is type(None):
        return "null"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _limits(type_text(arguments[0]), arguments[1:])
    if origin is Literal:
        values = ", ".join(str(value) for value in arguments)
        return values if len(arguments) == 1 else f"one of {values}"
    if origin in (Union, types.UnionType):
        if str in arguments and dict[str, Any] in arguments:  # a `Choice`
            others = [part for part in arguments if part not in (str, dict[str, Any])]
            return " or ".join(["plugin", *map(type_text, others)])
        return " or ".join(type_text(part) for part in arguments)
    if origin in (list, tuple, set, frozenset):
        items = [type_text(part) for part in arguments if part is not ...]
        return f"list of {' and '.join(dict.fromkeys(items))}" if items else "list"
    if origin is dict:
        return "mapping" if arguments[1] is Any else f"mapping to {type_text(arguments[1])}"
    if isinstance(annotation, type):
        return _WORDS.get(annotation.__name__, annotation.__name__)
    return re.sub(r"\b(typing|collections\.abc)\.", "", str(annotation))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    return json.dumps(value, default=str) if not isinstance(value, str) else value or '""'


def _limits(words: str, metadata: Iterable[Any]) -> str:
    limits = [
        f"{sign} {getattr(constraint, attribute)}"
        for constraint in metadata
        for attribute, sign in _SIGNS.items()
        if getattr(constraint, attribute, None) is not None
    ]
    inner = [_limits("", constraint.metadata) for constraint in metadata if isinstance(constraint, FieldInfo)]
    return " ".join(part for part in (words, ", ".join([*limits, *inner])) if part)


class _DescribedSchema(GenerateJsonSchema):
    """A JSON schema with the descriptions that `fill_descriptions` sets."""

    def model_schema(self, schema: Any) -> dict[str, Any]:
        made = super().model_schema(schema)
        for name, field in schema["cls"].model_fields.items():
            if field.description and section_of(field) is None:  # A section has the docstring of its class.
                made["properties"][field.alias or name].setdefault("description", field.description)
        return made


_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def editor_schema(backend: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of the core's keys and a backend's keys. No key is required, because files may omit any.

    For an editor, interpolations (``${…}``) are text. It marks them as errors if a key has another type.
    """
    schemas = (RunConfig, backend)
    for schema in schemas:
        fill_descriptions(schema)
    models, definitions = models_json_schema(
        [(schema, "validation") for schema in schemas],
        title="rllm configuration",
        schema_generator=_DescribedSchema,
    )
    definitions = definitions["$defs"]
    parts = [definitions[reference["$ref"].rpartition("/")[2]] for reference in models.values()]
    properties: dict[str, Any] = {}
    for part in parts:
        for name, value in part.get("properties", {}).items():
            properties[name] = _both(properties[name], value, definitions) if name in properties else value
    for definition in definitions.values():
        definition.pop("required", None)
    return {
        "$schema": _DIALECT,
        "title": "rllm configuration",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": {name: value for name, value in definitions.items() if value not in parts},
    }


def _both(core: dict[str, Any], backend: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a section with keys of both the core and the backend."""
    sections = [definitions[each["$ref"].rpartition("/")[2]] for each in (core, backend) if "$ref" in each]
    merged = {name: value for section in sections for name, value in section.get("properties", {}).items()}
    description = core.get("description") or sections[0].get("description", "")
    return {"type": "object", "description": description, "properties": merged, "additionalProperties": False}
