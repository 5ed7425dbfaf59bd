"""A tokenizer whose chat template shows tools, their calls and their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

STOP = ord("$")


class ToolTokenizer:
    """One token per character. Tools, calls and results are rendered as in many models' templates.

    A function in `shows` replaces the rendering of one kind.
    """

    def __init__(self, **shows: Callable[..., str]) -> None:
        self._shows = shows

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] = (), **options: Any
    ) -> str:
        return self._show("tools", tools) + "".join(self._turn(message) for message in conversation) + "<a>"

    def _turn(self, message: Mapping[str, Any]) -> str:
        calls = "".join(self._show("call", call["function"]) for call in message.get("tool_calls", ()))
        end = "$" if message["role"] == "assistant" else ""
        return f"<{message['role'][0]}>{self._show(message['role'], message['content'])}{calls}{end}"

    def _show(self, what: str, value: Any) -> str:
        return self._shows.get(what, SHOWN.get(what, str))(value)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(chr(token) for token in token_ids if token != STOP)


SHOWN: dict[str, Callable[[Any], str]] = {
    "tools": lambda tools: "".join(f"[{json.dumps(tool)}]" for tool in tools),
    "call": lambda call: f"<call>{json.dumps(call)}</call>",
}
