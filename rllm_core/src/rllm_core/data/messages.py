"""Chat messages, tools, and replies taken apart. Everything is JSON data in the shape of OpenAI's chat API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]
"""``{"role": "user", "content": "lower"}``. `content` is text or a list of parts (``{"type": "text", "text": …}``); an
assistant message may have ``tool_calls``, one of role ``tool`` says which of them it answers (``tool_call_id``)."""
Tool = Mapping[str, Any]
"""A tool that the model may call: ``{"type": "function", "function": {"name": …, "parameters": JSON schema}}``."""
Action = str | Mapping[str, Any]
"""What an agent does in its environment: text, or a JSON object where the environment takes those."""


def text_of(message: Message) -> str:
    """The text of a message; parts that are no text, such as pictures, are left out."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A call of a tool that the model wrote, and that could be read."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""
    """What the answering message repeats as its ``tool_call_id``."""


@dataclass(frozen=True, kw_only=True)
class MalformedToolCall:
    """A call that could not be read: cut off, or with arguments that are no JSON object."""

    text: str
    """What the model wrote."""
    problem: str


@dataclass(frozen=True, kw_only=True)
class Response:
    """One reply of the model, taken apart by the renderer of the model."""

    text: str
    """All of it, without special tokens."""
    content: str
    """What is said to the user: `text` without reasoning and without tool calls."""
    reasoning: str | None = None
    """What the model thought; None where the renderer finds no thoughts."""
    tool_calls: tuple[ToolCall, ...] = ()
    malformed_calls: tuple[MalformedToolCall, ...] = ()
    finish_reason: str = "stop"
    """As `Completion.finish_reason`: ``length`` where the reply was cut off."""

    def ended_by(self, finish_reason: str) -> Response:
        """The same with another finish reason; quicker than `dataclasses.replace`, for it is done for every reply."""
        made = object.__new__(Response)
        made.__dict__.update(self.__dict__, finish_reason=finish_reason)
        return made

    @property
    def message(self) -> Message:
        """The reply as the assistant's message of a history."""
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
