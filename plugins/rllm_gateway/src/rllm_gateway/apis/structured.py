"""Constrained responses: JSON that follows a schema, or a tool call. Both become one JSON schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rllm_core.data.messages import Tool
from rllm_gateway.apis import fields
from rllm_gateway.apis.fields import invalid

Json = dict[str, Any]


@dataclass(frozen=True)
class ResponseFormat:
    """The required form of a response."""

    parameter: str
    """The request's parameter that requires it."""
    schema: str
    """JSON schema as JSON text."""


def find_required_form(
    parameter: str,
    schema: Json | None,
    tools: Sequence[Tool],
    must_call: bool,
    tool: str | None,
    choice_parameter: str = "tool_choice",
) -> ResponseFormat | None:
    """Return the required form of a response. None if it may have any form.

    Args:
        parameter: the parameter that contains the schema.
        schema: JSON schema of the response's text. None if it may be any text.
        tools: tools of the request.
        must_call: True if the response must call a tool.
        tool: name of the only tool that the response may call. None if it may call any tool.
        choice_parameter: the parameter that requires a tool call.

    Raises:
        RefusedError: the request does not contain the tool that must be called.
    """
    offered = [each["function"] for each in tools if tool is None or each["function"]["name"] == tool]
    calls = [_call_schema(function) for function in offered]
    if must_call:
        if not calls:
            raise invalid(
                f"{choice_parameter} needs {tool or 'a tool':.80}, which tools does not offer.", choice_parameter
            )
        return ResponseFormat(choice_parameter, _text(_any_of(calls)))
    return None if schema is None else ResponseFormat(parameter, _text(_any_of([schema, *calls])))


def schema_of(found: Mapping[str, Any], holder: Mapping[str, Any], where: str) -> Json | None:
    """Return the JSON schema of a ``response_format``. None if its type is ``text``.

    Args:
        found: the format, which has ``type``.
        holder: the object with ``schema``, for the type ``json_schema``.
        where: the format's name in errors.

    Raises:
        RefusedError: the format has an unknown type, or the schema is not an object.
    """
    match found.get("type"):
        case "text":
            return None
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            return fields.mapping(holder, "schema", where) or {"type": "object"}
        case other:
            raise invalid(f"{where}.type is {other!r:.80}; use text, json_object or json_schema.", f"{where}.type")


def call_in(content: str, tools: Sequence[Tool]) -> list[Json]:
    """Return the tool call in a constrained response, in a list. The list is empty if the response is not a call."""
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError:
        return []
    if not isinstance(found, dict) or found.keys() != {"name", "arguments"}:
        return []
    if found["name"] not in [tool["function"]["name"] for tool in tools] or not isinstance(found["arguments"], dict):
        return []
    arguments = orjson.dumps(found["arguments"]).decode()
    return [{"id": "", "type": "function", "function": {"name": found["name"], "arguments": arguments}}]


def _call_schema(function: Mapping[str, Any]) -> Json:
    arguments = _move_references({"type": "object", **(function.get("parameters") or {})}, "#/properties/arguments")
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _any_of(schemas: Sequence[Json]) -> Json:
    if len(schemas) == 1:
        return schemas[0]
    return {"anyOf": [_move_references(schema, f"#/anyOf/{at}") for at, schema in enumerate(schemas)]}


def _move_references(part: Any, to: str) -> Any:
    """Return a schema for use as a part of a larger schema. Its references still point to itself."""
    match part:
        case {"$ref": str(reference)} if reference == "#" or reference.startswith("#/"):
            rest = {key: value for key, value in part.items() if key != "$ref"}
            return {"$ref": to + reference[1:], **_move_references(rest, to)}
        case dict():
            return {key: _move_references(value, to) for key, value in part.items()}
        case list():
            return [_move_references(each, to) for each in part]
        case _:
            return part


def _text(schema: Json) -> str:
    # Remove `$schema`, because some libraries would try to download it.
    return orjson.dumps({key: value for key, value in schema.items() if key != "$schema"}).decode()
