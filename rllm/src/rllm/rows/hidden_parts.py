"""Parts of messages that a renderer does not show to the model, found by rendering examples.

Each chat template has its own rules. Many show no reasoning, some show it only before a tool call, and some show a text
or a tool call, but not both. So the check renders a message twice with one part changed, once per form of message.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from rllm.rows.problem import RowError
from rllm_core.contracts.renderer import AUTO_RENDERER, Renderer, RendererSetup
from rllm_core.data.messages import Message, Tool, read_text
from rllm_core.errors import PluginError, RolloutError
from rllm_core.plugins import resolve
from rllm_core.rollout.template_renderer import REASONING_MARKS

ONE, OTHER = "firstprobe", "secondprobe"
"""Two values of a changed part."""
USER: Message = {"role": "user", "content": "."}
TOOLS: tuple[Tool, ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks a word up.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
        },
    }
    for name in (ONE, OTHER)
)


class Form(NamedTuple):
    """The form of a message: which parts it has, without their values."""

    role: str
    keys: frozenset[str]
    """Its keys that are not empty."""
    marks: tuple[str, str] | None
    """The strings around reasoning in its text."""
    calls: int
    """Its number of tool calls, at most 2."""
    has_tools: bool
    """True if the conversation has tools."""


_HIDDEN: WeakKeyDictionary[Renderer, dict[Form, str | None]] = WeakKeyDictionary()


def check_visible_parts(
    messages: Sequence[Message], tools: Sequence[Tool], renderer: Renderer, place_of: Callable[[int], str]
) -> None:
    """Check that a renderer shows each part of each message, at least while the message is the last one.

    Many templates drop reasoning from earlier turns. Models are trained like that, so it is no error.

    Args:
        messages: a conversation in the normal form of `rllm.rows.messages`.
        tools: the tools of the conversation.
        renderer: the renderer of the run.
        place_of: takes the number of a message, and returns its place in the row, for errors.

    Raises:
        RowError: a part is not shown.
    """
    known = _HIDDEN.setdefault(renderer, {})
    for number, message in enumerate(messages):
        form = form_of(message, has_tools=bool(tools))
        if form not in known:
            known[form] = hidden_part(form, renderer)
        if (part := known[form]) is not None:
            raise RowError(f"{place_of(number)}.{part}", _problem(form, part), _hint(form, part, renderer))
    _check_order_of_results(messages, tools, renderer, place_of)


def _check_order_of_results(
    messages: Sequence[Message], tools: Sequence[Tool], renderer: Renderer, place_of: Callable[[int], str]
) -> None:
    """Check that results of tools follow the order of their calls if the renderer does not show their ids."""
    order: dict[str, int] = {}
    last = -1
    for number, message in enumerate(messages):
        if message["role"] != "tool":
            calls = message.get("tool_calls") or ()
            order, last = {call["id"]: at for at, call in enumerate(calls) if "id" in call}, -1
            continue
        at = order.get(message.get("tool_call_id", ""), last + 1)
        if at < last and _hides_ids(tools, renderer):
            raise RowError(
                f"{place_of(number)}.tool_call_id",
                "is not in the order of the tool calls, and the model's chat template shows the order only",
                "Sort the results by their calls.",
            )
        last = at


def _hides_ids(tools: Sequence[Tool], renderer: Renderer) -> bool:
    form = Form("assistant", frozenset(("tool_calls",)), None, 2, bool(tools))
    call = {"role": "assistant", "content": "", **_calls(form, 0)}
    orders = (("call00000", "call00001"), ("call00001", "call00000"))
    try:
        one, other = (
            renderer.prompt(
                [USER, call, *(_result(id_, text) for id_, text in zip(ids, (ONE, OTHER), strict=True))], TOOLS
            )
            for ids in orders
        )
    except RolloutError:
        return False
    return bool(one.tolist() == other.tolist())


def _result(id_: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": id_, "content": text}


def form_of(message: Message, *, has_tools: bool) -> Form:
    """Return the form of a message in the normal form."""
    keys = frozenset(key for key, value in message.items() if value)
    text, calls = read_text(message), message.get("tool_calls") or ()
    marks = None
    if message["role"] == "assistant":
        marks = next(((start + word, end) for start, end, word in REASONING_MARKS if end in text), None)
    return Form(message["role"], keys, marks, min(len(calls), 2), has_tools)


def hidden_part(form: Form, renderer: Renderer) -> str | None:
    """Return the first part that a renderer does not show in a message of a form. None if it shows all parts."""
    tools = TOOLS if form.has_tools else ()
    for part, write in _parts(form).items():
        try:
            one, other = (renderer.prompt(_conversation(form, write(value)), tools) for value in (ONE, OTHER))
        except RolloutError:
            continue  # The template rejects the message, and the run reports that.
        if one.tolist() == other.tolist():
            return part
    return None


Write = Callable[[str], Mapping[str, Any]]
"""Takes a value, and returns the keys of a message that contain it."""


def _parts(form: Form) -> dict[str, Write]:
    """Return the parts of a form of message, by their keys."""
    parts: dict[str, Write] = {}
    if "content" in form.keys:
        parts["content"] = lambda value: {"content": _text(form, "why", value)}
    if form.marks is not None:
        parts[f"content, before {form.marks[1]},"] = lambda value: {"content": _text(form, value, "text")}
    for key in ("reasoning_content", *(("name",) if form.role != "tool" else ())):
        if key in form.keys:
            parts[key] = lambda value, key=key: {key: value}  # type: ignore[misc]
    for number in range(form.calls):
        call = f"tool_calls[{number}].function"
        parts[f"{call}.name"] = lambda value, number=number: _calls(form, number, name=value)  # type: ignore[misc]
        parts[f"{call}.arguments"] = lambda value, number=number: _calls(form, number, word=value)  # type: ignore[misc]
    return parts


def _conversation(form: Form, changed: Mapping[str, Any]) -> list[Message]:
    message = {"role": form.role, "content": "", **_example(form), **changed}
    if form.role == "assistant":
        return [USER, message]
    if form.role == "tool":
        call = {"role": "assistant", "content": "", **_calls(form, 0, count=1)}
        return [USER, call, {**message, "tool_call_id": "call00000"}]
    return [message] if form.role == "user" else [message, USER]


def _example(form: Form) -> dict[str, Any]:
    """Return a message of a form."""
    values = {"content": _text(form, "why", "text"), "reasoning_content": "because", "name": ONE}
    example: dict[str, Any] = {key: value for key, value in values.items() if key in form.keys}
    return example | (_calls(form, 0) if form.calls else {})


def _text(form: Form, reasoning: str, text: str) -> str:
    return text if form.marks is None else f"{form.marks[0]}\n{reasoning}\n{form.marks[1]}\n\n{text}"


def _calls(form: Form, changed: int, name: str = ONE, word: str = "proof", count: int = 0) -> dict[str, Any]:
    """Return tool calls, of which one has a certain name and argument."""
    calls = []
    for number in range(count or form.calls):
        named, argument = (name, word) if number == changed else (ONE, "proof")
        function = {"name": named, "arguments": json.dumps({"word": argument})}
        # Ids have nine letters or digits, because some templates accept no other ids.
        calls.append({"id": f"call0000{number}", "type": "function", "function": function})
    return {"tool_calls": calls}


def _problem(form: Form, part: str) -> str:
    with_ = " with tool calls" if form.calls else ""
    return f"is not shown to the model, because the chat template drops it in messages of role {form.role!r}{with_}"


def _hint(form: Form, part: str, renderer: Renderer) -> str:
    names = [name for name, other in other_renderers(renderer) if hidden_part(form, other) is None]
    if names:
        return f"Set rllm.renderer={names[0]}, which shows it. Or remove it."
    if part == "reasoning_content" and form.marks is None:
        in_text = form._replace(keys=form.keys - {part} | {"content"}, marks=REASONING_MARKS[0][:2])
        if hidden_part(in_text, renderer) is None:
            return "Remove it, or write it into `content`, between <think> and </think>."
    if form.role == "assistant":
        return "Remove it, or write the row as text, with the columns `prompt` and `completion`."
    return "Remove it, or choose a model whose chat template shows it."


def other_renderers(renderer: Renderer) -> Iterator[tuple[str, Renderer]]:
    """Yield renderers that write the same prompts for a model, each with its name in ``rllm.renderer``."""
    tokenizer = getattr(renderer, "tokenizer", None)
    try:
        find = resolve("renderer", AUTO_RENDERER).plugin.alternatives
    except PluginError:
        find = None  # It is not installed.
    if tokenizer is not None and find is not None:
        yield from find()(RendererSetup(name="", tokenizer=tokenizer, stop_ids=renderer.stop_ids))
