"""Requests of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from rllm_gateway import fields
from rllm_gateway.exchange import Asked
from rllm_gateway.parameters import Outcome, Rules, refuse_unless_ignored
from rllm_gateway.refusals import invalid
from rllm_gateway.structured import schema_of, wanted

RULES = Rules(
    honoured=frozenset(("messages", "system", "max_tokens", "stop_sequences", "stream", "tools", "metadata")),
    overruled=frozenset(("model", "temperature", "top_p", "top_k")),
    ignored=frozenset(
        (
            "cache_control",
            "diagnostics",
            "inference_geo",
            "service_tier",
            "speed",
            "thinking",
            "user_profile_id",
            "workspace_id",
        )
    ),
    refused={"container": (), "output_config": ({},), "tool_choice": ()},
)
FORMS = ("tool_choice", "output_config", "output_format")
"""Parameters that decide the form of a reply. Clients of the beta, such as LiteLLM, send ``output_format``."""
MOST_STOPS = 16
CHOICES = ("auto", "none", "any", "tool")


def read(body: dict[str, Any], unsupported: Any) -> Asked:
    """Raises RefusedError."""
    _check_thread(body)
    choice = fields.mapping(body, "tool_choice")
    kind = choice.get("type")
    config = fields.mapping(body, "output_config")
    old_form = fields.mapping(body, "output_format")
    plain = {name: value for name, value in body.items() if name not in FORMS}
    outcomes = RULES.outcomes(plain, unsupported)
    if kind is not None:
        if kind not in CHOICES:
            refuse_unless_ignored("tool_choice", unsupported)
        outcomes["tool_choice"] = "honoured" if kind in CHOICES else "ignored"
    form_name = "output_config.format" if "format" in config or not old_form else "output_format"
    form = fields.mapping(config, "format", "output_config") or old_form
    schema = schema_of(form, form, form_name) if form else None
    if old_form:
        outcomes["output_format"] = "ignored" if schema is None else "honoured"
    if config:
        has_form = schema is not None and form_name == "output_config.format"
        outcomes["output_config"] = "honoured" if has_form else "ignored"
    reader = _Messages(unsupported, outcomes)
    messages = list(reader.system(body))
    tools = [_tool(tool, f"tools[{at}]") for at, tool in enumerate(fields.objects(body, "tools"))]
    tools = [] if kind == "none" else tools
    turns = fields.objects(body, "messages")
    for at, turn in enumerate(turns):
        messages += reader.messages(turn, f"messages[{at}]")
    if not turns:
        raise invalid("messages is empty; send at least one.", "messages")
    return Asked(
        messages=messages,
        tools=tools,
        wanted=wanted(
            form_name,
            schema,
            tools,
            kind in ("any", "tool"),
            fields.text(choice, "name", "tool_choice") if kind == "tool" else None,
        ),
        max_tokens=fields.whole(body, "max_tokens", 1, 1 << 31),
        stop=fields.stop_texts(body, "stop_sequences", MOST_STOPS),
        stream=fields.truth(body, "stream"),
        model=fields.optional_text(body, "model"),
        metadata=fields.mapping(body, "metadata"),
        sent={name: value for name, value in body.items() if name != "messages"},
        outcomes=outcomes,
    )


def _check_thread(body: Mapping[str, Any]) -> None:
    """Refuse conversations that the server holds, whatever the session ignores: later requests are parts of them.

    Clients know the code, and send the whole conversation instead.
    """
    if "thread" in body:
        raise invalid(
            "thread is not supported; send the whole conversation each time.", "thread", "thread_unsupported_request"
        )


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise invalid(f"{where}.type is {tool['type']!r:.80}; this model has no tools of the server.", f"{where}.type")
    function: dict[str, Any] = {"name": fields.text(tool, "name", where)}
    if description := fields.optional_text(tool, "description", where):
        function["description"] = description
    return {"type": "function", "function": function | {"parameters": fields.mapping(tool, "input_schema", where)}}


class _Messages:
    """Reads turns. One turn of Anthropic's may be several messages: results of tools are messages of their own."""

    def __init__(self, unsupported: Any, outcomes: dict[str, Outcome]) -> None:
        self._unsupported = unsupported
        self._outcomes = outcomes

    def system(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if said := self._words(body.get("system"), "system"):
            yield {"role": "system", "content": said}

    def messages(self, turn: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
        role = fields.text(turn, "role", where)
        if role not in ("user", "assistant", "system"):
            raise invalid(f"{where}.role is none of user, assistant and system.", f"{where}.role")
        if role == "assistant":
            yield self._assistant(turn, where)
        elif isinstance(turn.get("content"), str):
            yield {"role": role, "content": turn["content"]}
        else:
            yield from self._said(role, turn, where)

    def _said(self, role: str, turn: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
        others = list[dict[str, Any]]()
        for at, block in enumerate(fields.objects(turn, "content", where)):
            place = f"{where}.content[{at}]"
            if block.get("type") == "tool_result":
                result = self._words(block.get("content"), f"{place}.content")
                yield {"role": "tool", "tool_call_id": fields.text(block, "tool_use_id", place), "content": result}
            else:
                others.append(block)
        if others or not turn.get("content"):
            yield {"role": role, "content": self._words(others, f"{where}.content")}

    def _assistant(self, turn: Mapping[str, Any], where: str) -> dict[str, Any]:
        content = turn.get("content")
        if isinstance(content, str):
            return {"role": "assistant", "content": content}
        blocks = fields.objects(turn, "content", where)
        calls = [_call(block, f"{where}.content") for block in blocks if block.get("type") == "tool_use"]
        thoughts = [block for block in blocks if block.get("type") == "thinking"]
        rest = [b for b in blocks if b.get("type") not in ("tool_use", "thinking", "redacted_thinking")]
        message: dict[str, Any] = {"role": "assistant", "content": self._words(rest, f"{where}.content")}
        if thoughts:
            thought = [fields.text(block, "thinking", f"{where}.content") for block in thoughts]
            message["reasoning_content"] = "".join(thought)
        return message | ({"tool_calls": calls} if calls else {})

    def _words(self, content: Any, where: str) -> str:
        if content is None or isinstance(content, str):
            return content or ""
        words = []
        for at, block in enumerate(fields.objects({"content": content}, "content")):
            kind = fields.text(block, "type", f"{where}[{at}]")
            if kind == "text":
                words.append(fields.text(block, "text", f"{where}[{at}]"))
            else:
                refuse_unless_ignored(f"messages.{kind:.64}", self._unsupported)
                self._outcomes[f"messages.{kind:.64}"] = "ignored"
        return "".join(words)


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    arguments = orjson.dumps(fields.mapping(block, "input", where)).decode()
    return {
        "id": fields.text(block, "id", where),
        "type": "function",
        "function": {"name": fields.text(block, "name", where), "arguments": arguments},
    }
