"""The format of tool calls in a chat template. It is detected from rendered examples and used to parse responses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from rllm_core.data.messages import MalformedToolCall, ToolCall
from rllm_core.errors import RolloutError

Render = Callable[[list[dict[str, Any]], list[dict[str, Any]]], str]
"""Converts messages and tools to the text of a prompt."""

OFFERED = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
USER = {"role": "user", "content": "."}
NAMES = ("firstprobe", "secondprobe")
ARGUMENTS = {"word": "proof"}
DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class CallFormat:
    """A format in which calls are JSON objects between two marks. Without marks, a response is one call or no call."""

    start: str
    end: str
    arguments: str
    """The key of the arguments. The key of the tool's name is always ``name``."""

    def read(self, text: str) -> tuple[str, list[ToolCall | MalformedToolCall]]:
        """Return the text outside the calls, and the calls in order. A call's id is its position in the response."""
        if not self.start:
            call = self._bare(text)
            return (text, []) if call is None else ("", [call])
        said, *marked = text.split(self.start)
        if not marked:
            return text, []
        words, calls = [said], list[ToolCall | MalformedToolCall]()
        for part in marked:
            call, rest = self._parse_call(part, f"call_{len(calls)}")
            calls.append(call)
            words.append(rest)
        return "\n".join(filter(None, (word.strip() for word in words))), calls

    def _bare(self, text: str) -> ToolCall | MalformedToolCall | None:
        body = text.strip()
        if not (body.startswith("{") and '"name"' in body and f'"{self.arguments}"' in body):
            return None
        try:
            return self._call(json.loads(body), body, "call_0")
        except ValueError as error:
            return MalformedToolCall(text=body, problem=f"it is no JSON object: {error}")

    def _parse_call(self, part: str, id_: str) -> tuple[ToolCall | MalformedToolCall, str]:
        """Return the call at the beginning of `part`, and the text after it."""
        body = part.lstrip()
        try:
            data, stop = DECODER.raw_decode(body)
        except ValueError as error:
            written, _, rest = part.partition(self.end)
            return MalformedToolCall(text=self._join_marks(written), problem=f"it is no JSON object: {error}"), rest
        inside, ended, rest = body[stop:].partition(self.end)
        if inside.strip():
            problem = f"there is more than a JSON object before {self.end}"
            return MalformedToolCall(text=self._join_marks(body[:stop] + inside), problem=problem), rest
        return self._call(data, self._join_marks(body[:stop]), id_), rest if ended else ""

    def _call(self, data: Any, text: str, id_: str) -> ToolCall | MalformedToolCall:
        name = data.get("name") if isinstance(data, dict) else None
        if not isinstance(name, str):
            return MalformedToolCall(text=text, problem='it has no "name" that is a string')
        arguments = data.get(self.arguments, {})
        if not isinstance(arguments, Mapping):
            return MalformedToolCall(text=text, problem=f'its "{self.arguments}" are no JSON object')
        return ToolCall(name=name, arguments=arguments, id=id_)

    def _join_marks(self, body: str) -> str:
        return f"{self.start}{body.rstrip()}{self.end}"


def call_format(render: Render) -> CallFormat | None:
    """Return the format of a template's calls. None if calls are not JSON objects, or not separable from the text
    around them."""
    try:
        asked, one = render([USER], [OFFERED]), render([USER, _calling(NAMES[:1])], [OFFERED])
    except RolloutError:
        return None
    first = _find(one, NAMES[0])
    if first is None:
        return None
    marks = _marks_between_two(render)
    if marks is None:
        # The template supports one call at a time. Only a response that is a bare object is distinguishable from text.
        return CallFormat("", "", first.arguments) if one[: first.start].strip() == asked.strip() else None
    return CallFormat(*marks, first.arguments)


@dataclass(frozen=True)
class _JsonCall:
    start: int
    stop: int
    arguments: str


def _find(text: str, name: str) -> _JsonCall | None:
    """Return the innermost JSON object in `text` that is the call of `name`."""
    start = text.find(name)
    while start > 0 and (start := text.rfind("{", 0, start)) >= 0:
        try:
            data, stop = DECODER.raw_decode(text, start)
        except ValueError:
            continue
        keys = {json.dumps(value): key for key, value in data.items()}
        of_arguments = keys.get(json.dumps(ARGUMENTS))
        if keys.get(json.dumps(name)) == "name" and of_arguments is not None:
            return _JsonCall(start, stop, of_arguments)
    return None


def _marks_between_two(render: Render) -> tuple[str, str] | None:
    """Return the marks before and after a call, detected from two calls in one response."""
    try:
        text = render([USER, _calling(NAMES)], [OFFERED])
    except RolloutError:
        return None
    one, other = (_find(text, name) for name in NAMES)
    if one is None or other is None:
        return None
    between = text[one.stop : other.start]
    start = _common_end(text[: one.start], between)
    # The last character before the mark may be the same in both strings, for example the ">" of two tags.
    start = start[max(start.find("<"), 0) :]
    end = between[: len(between) - len(start)]
    return (start.strip(), end.strip()) if start.strip() and end.strip() else None


def _common_end(one: str, other: str) -> str:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(one), reversed(other), strict=False))
    return one[len(one) - len(list(same)) :]


def _calling(names: Sequence[str]) -> dict[str, Any]:
    # Ids have nine letters or digits, because some templates accept no other ids.
    functions = [{"name": name, "arguments": json.dumps(ARGUMENTS)} for name in names]
    calls = [{"id": f"call0000{n}", "type": "function", "function": each} for n, each in enumerate(functions)]
    return {"role": "assistant", "content": "", "tool_calls": calls}
