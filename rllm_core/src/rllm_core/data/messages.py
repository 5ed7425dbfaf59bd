"""Chat messages, tools and parsed responses. All are JSON data in the format of OpenAI's chat API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]
"""A chat message: ``{"role": "user", "content": "lower"}``. `content` is text or a list of parts (``{"type": "text",
"text": …}``). An assistant message may have ``tool_calls``. A message with role ``tool`` refers to one of these calls
with ``tool_call_id``."""
Tool = Mapping[str, Any]
"""A tool that the model may call: ``{"type": "function", "function": {"name": …, "parameters": JSON schema}}``."""
Action = str | Mapping[str, Any]
"""An agent's action in its environment: text, or a JSON object if the environment accepts objects."""


def read_text(message: Message) -> str:
    """Return the text of a message. Parts that are not text, such as pictures, are ignored."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content)


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A tool call that the model wrote and that was parsed successfully."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""
    """The id that the tool's message repeats as ``tool_call_id``."""


@dataclass(frozen=True, kw_only=True)
class MalformedToolCall:
    """A call that could not be parsed, because it was cut off or its arguments are not a JSON object."""

    text: str
    """The text that the model wrote."""
    problem: str


@dataclass(frozen=True, kw_only=True)
class Response:
    """One response of the model, parsed by the model's renderer."""

    text: str
    """The whole text, without special tokens."""
    content: str
    """The answer for the user: `text` without reasoning and without tool calls."""
    reasoning: str | None = None
    """The model's reasoning. None if the renderer finds none."""
    tool_calls: tuple[ToolCall, ...] = ()
    malformed_calls: tuple[MalformedToolCall, ...] = ()
    finish_reason: str = "stop"
    """The value of `Completion.finish_reason`: ``length`` if the response was cut off."""

    def ended_by(self, finish_reason: str) -> Response:
        """Return the same response with a different finish reason. It is faster than `dataclasses.replace`, because it
        runs for every response."""
        made = object.__new__(Response)
        made.__dict__.update(self.__dict__, finish_reason=finish_reason)
        return made

    @property
    def message(self) -> Message:
        """The response as an assistant message of a chat history."""
        words = [self.content, *(call.text for call in self.malformed_calls)]
        message: dict[str, Any] = {"role": "assistant", "content": "\n".join(filter(None, words))}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
                }
                for call in self.tool_calls
            ]
        return message
