"""Code that OpenAI's APIs share: the parameter ``tool_choice``, and errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from rllm_gateway import fields
from rllm_gateway.refusals import Kind, RefusedError


@dataclass(frozen=True)
class ToolChoice:
    """A supported value of ``tool_choice``."""

    none: bool
    """True if the model must not call a tool. Its prompt then contains no tools."""
    must_call: bool
    tool: str | None = None
    """The only tool that the model may call. None if it may call any tool."""


def tool_choice(body: Mapping[str, Any], holder: str | None) -> ToolChoice | None:
    """Return the choice. None if it is missing, or has an unsupported value.

    `holder` is the key of the object with the tool's name; None if the choice has the name itself.

    Raises:
        RefusedError: a tool is chosen without a name.
    """
    match body.get("tool_choice"):
        case "auto" | "none" | "required" as choice:
            return ToolChoice(choice == "none", choice == "required")
        case {"type": "function"}:
            choice = fields.mapping(body, "tool_choice")
            named = choice if holder is None else fields.mapping(choice, holder, "tool_choice")
            return ToolChoice(False, True, fields.text(named, "name", "tool_choice"))
        case _:
            return None


def without_known_choice(body: Mapping[str, Any], chosen: ToolChoice | None) -> Mapping[str, Any]:
    """Return the parameters without ``tool_choice`` if its value is supported, because it then needs no rule."""
    return body if chosen is None else {name: value for name, value in body.items() if name != "tool_choice"}


def must_call(chosen: ToolChoice | None) -> dict[str, Any]:
    """Return the arguments for `wanted`."""
    return {"must_call": chosen is not None and chosen.must_call, "tool": None if chosen is None else chosen.tool}


TYPES: dict[Kind, str] = {
    "invalid": "invalid_request_error",
    "authentication": "authentication_error",
    "permission": "permission_error",
    "not_found": "not_found_error",
    "conflict": "conflict_error",
    "too_large": "invalid_request_error",
    "busy": "rate_limit_error",
    "failed": "server_error",
}


def error_object(refused: RefusedError) -> dict[str, Any]:
    return {
        "message": refused.message,
        "type": TYPES[refused.kind],
        "param": refused.param,
        "code": refused.code,
    }


def error_body(refused: RefusedError) -> bytes:
    return orjson.dumps({"error": error_object(refused)})
