"""The tools of one rollout: the schemas of typed functions, checks of arguments, and the answers to calls."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Required, get_type_hints

from pydantic import (
    ConfigDict,
    Field,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    with_config,
)
from pydantic_core import to_json
from typing_extensions import TypedDict

from rllm.builtin.tasks.function_file import missing_function, run_file, split_function, unnamed_function
from rllm_core.data.messages import MalformedToolCall, Message, Response, Tool, ToolCall
from rllm_core.errors import ConfigError, did_you_mean
from rllm_core.notices import one_line
from rllm_core.rollout.calls import call
from rllm_core.rollout.waits import Wait

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


Outcome = Literal["answered", "malformed", "failed"]
LONGEST_PROBLEM = 300


@dataclass(frozen=True)
class Runnable:
    """A tool that can be run."""

    schema: Tool
    function: Callable[..., Any]
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    """The arguments of a call as the function takes them; raises ValidationError."""
    blocking: bool = True
    """True if a plain function runs in a separate thread."""

    @property
    def name(self) -> str:
        return str(self.schema["function"]["name"])


@dataclass(frozen=True)
class Answer:
    """The result of a call, as the model receives it."""

    message: Message
    outcome: Outcome


def load_tools(tools: Sequence[str]) -> tuple[Runnable, ...]:
    """Return the tools of files, each ``FILE.py:FUNCTION``.

    Raises:
        ConfigError: a file or function is missing or fails, or a function cannot be described.
    """
    return tuple(runnable(load_function(tool)) for tool in tools)


def runnable(offered: Callable[..., Any] | tuple[Tool, Callable[..., Any]]) -> Runnable:
    """Return a function, or a schema with a function, as a `Runnable`.

    Raises:
        ConfigError: it is neither, or the function cannot be described.
    """
    if isinstance(offered, tuple) and len(offered) == 2 and callable(offered[1]):
        schema, function = offered
        if not isinstance(schema, Mapping) or "name" not in schema.get("function", ()):
            raise ConfigError(
                "bad-tool", f"{schema!r:.80} is not a schema of a tool.", 'Give {"type": "function", "function": {…}}.'
            )
        return Runnable(schema, function, dict)
    if not callable(offered):
        raise ConfigError(
            "bad-tool", f"{offered!r:.80} is not a tool.", "Give a typed function, or a tuple (schema, function)."
        )
    name = getattr(offered, "__name__", type(offered).__name__)
    arguments = Arguments(offered, name)
    return Runnable(tool_schema(name, arguments), offered, arguments.read)


class Toolbox:
    """Run the tool calls of a response. Mistakes of a model or a tool do not stop the run."""

    def __init__(self, tools: Sequence[Runnable], seconds: float) -> None:
        """Combine tools. `seconds` is the time limit of a call.

        Raises:
            ConfigError: two tools have the same name.
        """
        self._tools = {tool.name: tool for tool in tools}
        self._seconds = seconds
        if len(self._tools) < len(tools):
            names = [tool.name for tool in tools]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError("duplicate-choice", f"Two tools have the name {twice!r}.", "Remove one, or rename it.")

    @property
    def schemas(self) -> list[Tool]:
        return [tool.schema for tool in self._tools.values()]

    async def answers(self, response: Response) -> list[Answer]:
        """Return an answer for each call of `response`, in their order. The calls run concurrently."""
        calls = await asyncio.gather(*(self._answer(each) for each in response.tool_calls))
        return [*calls, *(_unreadable(each, response.finish_reason) for each in response.malformed_calls)]

    async def _answer(self, tool_call: ToolCall) -> Answer:
        text, outcome = await self._run(tool_call)
        return Answer({"role": "tool", "tool_call_id": tool_call.id, "name": tool_call.name, "content": text}, outcome)

    async def _run(self, tool_call: ToolCall) -> tuple[str, Outcome]:
        tool = self._tools.get(tool_call.name)
        if tool is None:
            hint = did_you_mean(tool_call.name, self._tools) or f"Tools: {', '.join(self._tools) or 'none'}."
            return f"Error: there is no tool {tool_call.name!r}. {hint}", "malformed"
        try:
            arguments = tool.read(tool_call.arguments)
        except ValidationError as error:
            return f"Error: wrong arguments for {tool_call.name}: {_problems(error)}.", "malformed"
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                with Wait("tool", tool.name):
                    value = await call(partial(tool.function, **arguments), blocking=tool.blocking)
                return as_text(value), "answered"
        except asyncio.CancelledError:
            if (this := asyncio.current_task()) is None or this.cancelling():
                raise
            return f"Error: {tool_call.name} was cancelled.", "failed"
        except (Exception, SystemExit) as error:  # noqa: BLE001  (user code: the model receives the error)
            if isinstance(error, TimeoutError) and limit.expired():
                return f"Error: {tool_call.name} did not answer within {self._seconds:g} s.", "failed"
            problem = one_line(f"{type(error).__name__}: {error}", LONGEST_PROBLEM)
            return f"Error: {tool_call.name} failed: {problem}", "failed"


def without_thread(tool: Runnable) -> Runnable:
    """Return the tool without its thread, for functions that only compute and return at once."""
    return replace(tool, blocking=False)


def as_text(value: Any) -> str:
    """Return a tool's result for the model. Text is unchanged, every other value is converted to JSON."""
    return value if isinstance(value, str) else to_json(value, fallback=str).decode()


def _unreadable(tool_call: MalformedToolCall, finish_reason: str) -> Answer:
    cut_off = " The response was cut off." if finish_reason == "length" else ""
    text = f"Error: the tool call cannot be read: {one_line(tool_call.problem, LONGEST_PROBLEM)}.{cut_off}"
    return Answer({"role": "tool", "content": text}, "malformed")


def _problems(error: ValidationError) -> str:
    each = (f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors(include_url=False))
    return one_line("; ".join(each), LONGEST_PROBLEM)


KEY = "rllm.workflow.workflow_args.tools"


def load_function(tool: str, key: str = KEY) -> Callable[..., Any]:
    """Run the file, once for all of its functions, and return this function or class.

    Args:
        tool: ``FILE.py:FUNCTION``.
        key: config key that names it, for errors.

    Raises:
        ConfigError: the file is not there, fails (naming the line), or has no such function; or none is named.
    """
    file, name = split_function(tool)
    if not file:
        raise ConfigError(
            "bad-function-name", f"{key} contains {tool!r}.", "Give FILE.py:FUNCTION, such as tools.py:search."
        )
    path = Path(file).expanduser()
    functions = vars(run_file(path))
    if not callable(found := functions.get(name)):
        known = [key for key, value in functions.items() if callable(value) and not key.startswith("_")]
        if not name.isidentifier():
            raise unnamed_function(tool, path, known, min(known, default="search"))
        raise missing_function(path, name, known)
    return found  # type: ignore[no-any-return]
