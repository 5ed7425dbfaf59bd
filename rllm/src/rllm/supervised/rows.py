"""Rows of data for fine-tuning, with the columns that TRL and verl use: messages, prompt and completion, or text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_core.data.messages import Message, Tool
from rllm_core.errors import ConfigError

COLUMNS = "messages, prompt and completion, or text"
_ONE_OF_THESE = (
    'Write {"messages": [{"role": "user", "content": …}, {"role": "assistant", "content": …}]}, '
    '{"prompt": …, "completion": …} or {"text": …}.'
)


@dataclass(frozen=True)
class Conversation:
    """Chat messages. Assistant messages from the place `trained_from` are trained."""

    messages: Sequence[Message]
    trained_from: int
    tools: Sequence[Tool] = ()


@dataclass(frozen=True)
class PlainText:
    """Text without a chat template. Only `completion` is trained."""

    prompt: str
    completion: str


def read_row(data: Mapping[str, Any], task_id: str) -> Conversation | PlainText:
    """Return the example in a row. Other columns than `COLUMNS` and ``tools`` are ignored.

    Raises:
        ConfigError: the row has none of the columns, a column has a wrong type, or nothing in it can be trained.
    """
    if data.get("messages") is not None:
        return _conversation(data["messages"], 0, data, task_id)
    if data.get("prompt") is not None and data.get("completion") is not None:
        prompt, completion = data["prompt"], data["completion"]
        if isinstance(prompt, str) and isinstance(completion, str):
            return PlainText(prompt, completion)
        if isinstance(prompt, list) and isinstance(completion, list):
            return _conversation([*prompt, *completion], len(prompt), data, task_id)
        raise _bad_row(task_id, "`prompt` and `completion` must both be text or both be lists of messages")
    if isinstance(data.get("text"), str):
        return PlainText("", data["text"])
    found = ", ".join(map(repr, data)) or "no columns"
    raise _bad_row(task_id, f"it has {found}; needed is {COLUMNS}")


def _conversation(messages: Any, trained_from: int, data: Mapping[str, Any], task_id: str) -> Conversation:
    if not isinstance(messages, list) or not all(isinstance(each, Mapping) and "role" in each for each in messages):
        raise _bad_row(task_id, "its messages are not a list of objects with `role` and `content`")
    last = max((at for at, each in enumerate(messages) if each["role"] == "assistant"), default=-1)
    if last < trained_from:
        raise _bad_row(task_id, "it has no assistant message to train on")
    if last == 0:
        raise _bad_row(task_id, "its first message is the assistant's, and nothing comes before it")
    tools = data.get("tools") or ()
    if isinstance(tools, str):  # TRL and verl store tools as JSON text, too
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise _bad_row(task_id, f"`tools` is not JSON ({error})") from error
    return Conversation([_as_sent(each) for each in messages[: last + 1]], trained_from, tools)


def _as_sent(message: Mapping[str, Any]) -> Message:
    """Return a message in the format of OpenAI's API: no empty keys, and arguments of tool calls as JSON text."""
    kept = {key: value for key, value in message.items() if value is not None}
    if calls := kept.get("tool_calls"):
        kept["tool_calls"] = [{**call, "function": _as_json_text(call["function"])} for call in calls]
    return kept


def _as_json_text(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments", {})
    return {**function, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}


def _bad_row(task_id: str, problem: str) -> ConfigError:
    return ConfigError("bad-example", f"Row {task_id!r} cannot be an example: {problem}.", _ONE_OF_THESE)
