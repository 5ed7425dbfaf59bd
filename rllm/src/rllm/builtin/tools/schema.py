"""The schema of a typed function with a docstring, and its arguments checked against the types."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NotRequired, Required, get_type_hints

from pydantic import ConfigDict, Field, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, with_config
from typing_extensions import TypedDict

from rllm_core.data.messages import Tool
from rllm_core.errors import ConfigError

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
NULL = {"type": "null"}


class Arguments:
    """The arguments of a function: their schema, and calls read by it."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        """Look at the signature.

        Raises:
            ConfigError: an argument has no type, or one that JSON cannot hold, or cannot be given by name.
        """
        self.description, meanings = read_docstring(function)
        try:
            hints = get_type_hints(function if hasattr(function, "__annotations__") else type(function).__call__)
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError, NameError) as error:
            raise ConfigError("bad-tool", f"Tool {name!r} has no signature that can be read: {error}.", _HOW) from error
        fields: dict[str, Any] = {}
        for parameter in parameters.values():
            if parameter.kind not in NAMED:
                raise ConfigError(
                    "bad-tool", f"Argument {str(parameter)!r} of tool {name!r} cannot be given by name.", _HOW
                )
            if parameter.name not in hints:
                raise ConfigError("bad-tool", f"Argument {parameter.name!r} of tool {name!r} has no type.", _HOW)
            meaning = Field(description=meanings.get(parameter.name))
            typed: Any = Annotated[hints[parameter.name], meaning]
            required = parameter.default is inspect.Parameter.empty
            fields[parameter.name] = Required[typed] if required else NotRequired[typed]
        try:
            kind = with_config(ConfigDict(extra="forbid"))(TypedDict(name, fields))  # type: ignore[operator]
            self._adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(kind)
            self.parameters = _plain(self._adapter.json_schema())
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            first = str(error).splitlines()[0].rstrip(".")
            raise ConfigError(
                "bad-tool", f"Tool {name!r} has arguments that JSON cannot hold: {first}.", _HOW
            ) from error

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments, converted to the function's types.

        Raises:
            pydantic.ValidationError: one is missing, unknown or has a different type.
        """
        return self._adapter.validate_python(dict(given))


def tool_schema(name: str, arguments: Arguments) -> Tool:
    """Return the tool in the form for chat templates."""
    return {
        "type": "function",
        "function": {"name": name, "description": arguments.description, "parameters": arguments.parameters},
    }


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema in the form of `transformers.utils.get_json_schema`, because models were trained on it."""
    plain: dict[str, Any] = {
        "type": "object",
        "properties": {name: _plain_type(each) for name, each in schema.get("properties", {}).items()},
    }
    if required := schema.get("required"):
        plain["required"] = required
    if definitions := schema.get("$defs"):
        plain["$defs"] = definitions
    return plain


def _plain_type(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    plain = {key: value for key, value in schema.items() if key not in ("title", "default", "anyOf", "description")}
    if "items" in plain:
        plain["items"] = _plain_type(plain["items"])
    if isinstance(plain.get("additionalProperties"), dict):
        plain["additionalProperties"] = _plain_type(plain["additionalProperties"])
    elif plain.get("additionalProperties") is True:
        del plain["additionalProperties"]
    if "anyOf" in schema:
        plain = _any_of([_plain_type(each) for each in schema["anyOf"]]) | plain
    if "enum" in plain and "type" in plain:
        plain = {"type": plain.pop("type")} | plain
    return plain | ({"description": schema["description"]} if "description" in schema else {})


def _any_of(options: list[dict[str, Any]]) -> dict[str, Any]:
    some = [each for each in options if each != NULL]
    nullable = {"nullable": True} if NULL in options else {}
    if len(some) == 1:
        return some[0] | nullable
    if all(set(each) == {"type"} for each in some):
        return {"type": sorted(each["type"] for each in some)} | nullable
    return {"anyOf": some} | nullable


_HOW = 'Write a function such as: def add(a: int, b: int) -> int, with a docstring that has a section "Args:".'


SECTION = re.compile(r"^(Args|Arguments|Returns|Raises|Yields|Examples?):\s*$", re.MULTILINE)
ARGUMENT = re.compile(r"^(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


def read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the description of `function`, and the descriptions of its arguments, from its docstring."""
    # ["does this", "Args", "what follows", "Returns", …]
    parts = SECTION.split(inspect.getdoc(function) or "")
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return parts[0].strip(), _arguments(sections.get("Args", sections.get("Arguments", "")))


def _arguments(section: str) -> dict[str, str]:
    lines = [line for line in inspect.cleandoc("\n" + section).splitlines() if line.strip()]
    found: dict[str, str] = {}
    name = None
    for line in lines:
        if (match := ARGUMENT.match(line)) is not None:
            name, text = match[1], match[2]
            found[name] = text.strip()
        elif name is not None:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
