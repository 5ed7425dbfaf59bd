"""Requests of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rllm_gateway import fields
from rllm_gateway.apis.tool_choice import must_call, tool_choice, without_known_choice
from rllm_gateway.exchange import MOST_TOP, Asked
from rllm_gateway.parameters import Outcome, Rules, refuse_held, refuse_unless_ignored
from rllm_gateway.refusals import invalid
from rllm_gateway.structured import schema_of, wanted

RULES = Rules(
    honoured=frozenset(
        (
            "input",
            "instructions",
            "max_output_tokens",
            "metadata",
            "stream",
            "tools",
            "user",
            "include",
            "text",
            "top_logprobs",
        )
    ),
    overruled=frozenset(("model", "temperature", "top_p")),
    ignored=frozenset(
        (
            "access_programs",
            "max_tool_calls",
            "parallel_tool_calls",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "reasoning",
            "safety_identifier",
            "service_tier",
            "store",
            "stream_options",
        )
    ),
    refused={
        "background": (False,),
        "background_options": (),
        "context_management": ([],),
        "image": (),
        "moderation": (),
        "tool_choice": (),
        "truncation": ("disabled",),
    },
    held=frozenset(("conversation", "previous_response_id", "prompt")),
)
WITH_LOGPROBS = "message.output_text.logprobs"
INCLUDED = (WITH_LOGPROBS, "reasoning.encrypted_content")
"""What clients ask for beside the answer. Thoughts are sent in the open, so that there are no encrypted ones."""
WORDS = ("input_text", "output_text", "text", "refusal")
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def read(body: dict[str, Any], unsupported: Any) -> Asked:
    """Raises RefusedError."""
    chosen = tool_choice(body, None)
    outcomes = RULES.outcomes(without_known_choice(body, chosen), unsupported)
    if chosen is not None:
        outcomes["tool_choice"] = "honoured"
    text = fields.mapping(body, "text")
    form = fields.mapping(text, "format", "text")
    schema = schema_of(form, form, "text.format") if form else None
    if text and schema is None:
        outcomes["text"] = "ignored"
    included = _included(body, unsupported, outcomes)
    tools = [_tool(tool, f"tools[{at}]") for at, tool in enumerate(fields.objects(body, "tools"))]
    tools = [] if chosen is not None and chosen.none else tools
    reader = _Items(unsupported, outcomes)
    if instructions := fields.optional_text(body, "instructions"):
        reader.messages.append({"role": "system", "content": instructions})
    if isinstance(body.get("input"), str):
        reader.messages.append({"role": "user", "content": body["input"]})
    else:
        for at, item in enumerate(fields.objects(body, "input")):
            reader.add(item, f"input[{at}]")
    if not reader.messages:
        raise invalid("input is empty; send a text or at least one item.", "input")
    return Asked(
        messages=reader.messages,
        tools=tools,
        wanted=wanted("text.format", schema, tools, **must_call(chosen)),
        max_tokens=fields.whole(body, "max_output_tokens", 1, 1 << 31),
        stream=fields.truth(body, "stream"),
        logprobs=WITH_LOGPROBS in included,
        top_logprobs=(fields.whole(body, "top_logprobs", 0, MOST_TOP) or 0) if WITH_LOGPROBS in included else 0,
        model=fields.optional_text(body, "model"),
        metadata=fields.mapping(body, "metadata"),
        sent={name: value for name, value in body.items() if name != "input"},
        outcomes=outcomes,
    )


def _included(body: Mapping[str, Any], unsupported: Any, outcomes: dict[str, Outcome]) -> list[Any]:
    included = body.get("include", [])
    if not isinstance(included, list):
        raise invalid("include must be a list of texts.", "include")
    if any(each not in INCLUDED for each in included):
        refuse_unless_ignored("include", unsupported)
        outcomes["include"] = "ignored"
    return included


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if fields.text(tool, "type", where) != "function":
        raise invalid(
            f"{where}.type is {tool['type']!r:.80}; only functions are offered to the model.", f"{where}.type"
        )
    function: dict[str, Any] = {"name": fields.text(tool, "name", where)}
    if description := fields.optional_text(tool, "description", where):
        function["description"] = description
    return {"type": "function", "function": function | {"parameters": fields.mapping(tool, "parameters", where)}}


class _Items:
    """Reads items. Thoughts, words and calls that follow each other are one message of the assistant."""

    def __init__(self, unsupported: Any, outcomes: dict[str, Outcome]) -> None:
        self.messages = list[dict[str, Any]]()
        self._unsupported = unsupported
        self._outcomes = outcomes
        self._open: dict[str, Any] | None = None
        """The assistant's message that calls still belong to."""

    def add(self, item: Mapping[str, Any], where: str) -> None:
        match item.get("type", "message"):
            case "message":
                self._message(item, where)
            case "reasoning":
                self._reasoning(item, where)
            case "function_call":
                self._assistant().setdefault("tool_calls", []).append(_call(item, where))
            case "function_call_output":
                output = self._words(item, "output", where)
                self._say({"role": "tool", "tool_call_id": fields.text(item, "call_id", where), "content": output})
            case "item_reference":
                refuse_held(f"{where}.type")
            case str(kind):
                self._leave_out(f"input.{kind:.64}")
            case _:
                raise invalid(f"{where}.type must be a text.", f"{where}.type")

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role = ROLES.get(fields.text(item, "role", where))
        if role is None:
            raise invalid(f"{where}.role is none of {', '.join(ROLES)}.", f"{where}.role")
        words = self._words(item, "content", where)
        if role != "assistant":
            self._say({"role": role, "content": words})
        elif self._open is not None and not self._open["content"] and "tool_calls" not in self._open:
            self._open["content"] = words
        else:
            self._open = None
            self._assistant()["content"] = words

    def _reasoning(self, item: Mapping[str, Any], where: str) -> None:
        """Thoughts begin a message."""
        parts = fields.objects(item, "content", where) or fields.objects(item, "summary", where)
        thought = "".join(fields.text(part, "text", f"{where}.content") for part in parts)
        self._open = None
        if thought:
            self._assistant()["reasoning_content"] = thought

    def _assistant(self) -> dict[str, Any]:
        if self._open is None:
            self._say({"role": "assistant", "content": ""})
            self._open = self.messages[-1]
        return self._open

    def _say(self, message: dict[str, Any]) -> None:
        self._open = None
        self.messages.append(message)

    def _words(self, item: Mapping[str, Any], key: str, where: str) -> str:
        content = item.get(key)
        if content is None or isinstance(content, str):
            return content or ""
        words = []
        for at, part in enumerate(fields.objects(item, key, where)):
            kind = fields.text(part, "type", f"{where}.{key}[{at}]")
            if kind in WORDS:
                words.append(fields.text(part, "refusal" if kind == "refusal" else "text", f"{where}.{key}[{at}]"))
            else:
                self._leave_out(f"input.{kind:.64}")
        return "".join(words)

    def _leave_out(self, name: str) -> None:
        refuse_unless_ignored(name, self._unsupported)
        self._outcomes[name] = "ignored"


def _call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {
        "id": fields.text(item, "call_id", where),
        "type": "function",
        "function": {
            "name": fields.text(item, "name", where),
            "arguments": fields.arguments(fields.optional_text(item, "arguments", where), where),
        },
    }
