"""Rows of NeMo-Gym's datasets: their prompts and tools, which have the form of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rllm_core.data.messages import Message, Tool
from rllm_core.errors import ConfigError

CREATE = "responses_create_params"


def check_row(row: Mapping[str, Any]) -> None:
    """Read the prompt and the tools of a row.

    Raises:
        ConfigError: the row is not a row of NeMo-Gym, or has parts other than text and functions.
    """
    read_messages(row)
    read_tools(row)


def read_messages(row: Mapping[str, Any]) -> list[Message]:
    """Return the prompt of a row as chat messages.

    Raises:
        ConfigError: see `check_row`.
    """
    create = row.get(CREATE)
    if not isinstance(create, Mapping) or not create.get("input"):
        raise _not_a_row(f"it has no {CREATE}.input")
    given = create["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages: list[Message] = [{"role": item.get("role"), "content": _read_text(item)} for item in items]
    if create.get("instructions"):
        messages.insert(0, {"role": "system", "content": create["instructions"]})
    return messages


def read_tools(row: Mapping[str, Any]) -> list[Tool]:
    """Return the tools of a row as schemas of chat functions.

    Raises:
        ConfigError: see `check_row`.
    """
    tools = row[CREATE].get("tools") or ()
    if wrong := [tool.get("type") for tool in tools if tool.get("type") != "function"]:
        raise _not_a_row(f"its tool {wrong[0]!r} is not a function")
    fields = ("name", "description", "parameters")
    return [
        {"type": "function", "function": {name: tool.get(name) or _EMPTY[name] for name in fields}} for tool in tools
    ]


_EMPTY: Mapping[str, Any] = {"name": "", "description": "", "parameters": {"type": "object", "properties": {}}}


def _read_text(item: Mapping[str, Any]) -> str:
    content = item.get("content")
    if item.get("type", "message") != "message" or not isinstance(content, str | Sequence):
        raise _not_a_row(f"its input has an item {item.get('type')!r}")
    if isinstance(content, str):
        return content
    if wrong := [part.get("type") for part in content if "text" not in part]:
        raise _not_a_row(f"its input has a part {wrong[0]!r}")
    return "".join(part["text"] for part in content)


def _not_a_row(reason: str) -> ConfigError:
    return ConfigError(
        "tasks-not-for-environment",
        f"A task cannot be rolled out with a resources server of NeMo-Gym: {reason}.",
        f"Set --data to a .jsonl file of NeMo-Gym. Its rows have {CREATE} with text messages and functions.",
    )
