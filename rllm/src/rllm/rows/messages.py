"""Chat messages in one normal form, for each command and server that reads them.

Every key of a message is used, is in `WITHOUT_MEANING`, or is an error. Templates see only the normal form, so equal
messages have equal prompts in training, fine-tuning, evaluation and the gateway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from rllm.rows.problem import RowError, shown
from rllm_core.data.messages import Message

ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""Role -> role in the normal form."""
RENAMED: Mapping[str, str] = {
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "observation": "tool",
    "ipython": "tool",
}
"""Role of other formats -> the role that the user probably means."""
REASONING = ("reasoning_content", "reasoning", "thinking")
"""Keys of an assistant's reasoning. The normal form has the first key."""
TRAINED = ("weight", "loss", "train", "training")
"""Keys with 0 or 1: if an assistant message is trained. They change no prompt."""
TEXT_PARTS: Mapping[str, str] = {"text": "text", "refusal": "refusal", "input_text": "text", "output_text": "text"}
"""Type of a part with text -> its key with the text."""
OTHER_PARTS: Mapping[str, str] = {
    "thinking": "Write its text into the message's `reasoning_content`.",
    "reasoning": "Write its text into the message's `reasoning_content`.",
    "tool_use": "Write it into the message's `tool_calls`.",
    "tool_result": "Write it as a message of role 'tool'.",
}
"""Type of a part without a place in `content` -> where to write it."""
WITHOUT_MEANING = frozenset(
    (
        "annotations",
        "cache_control",
        "created",
        "created_at",
        "finish_reason",
        "id",
        "metadata",
        "model",
        "provider_specific_fields",
        "timestamp",
        "token_count",
        "turn",
        "usage",
    )
)
"""Keys of messages and of their parts that are ignored, because no chat template shows them."""
OF_CALLS = frozenset(("id", "type", "function", "index"))
"""Keys of a tool call. ``index`` is ignored, because it is the position in the list."""
Unknown = Callable[[RowError, str], None]
"""Takes the error for an unknown key or part, and its name. Raises the error, or ignores the part."""


class Chat(NamedTuple):
    """Messages in the normal form."""

    messages: list[Message]
    untrained: frozenset[int]
    """Positions of assistant messages that must not be trained."""


def is_empty(value: Any) -> bool:
    """Return True if a value means the same as a missing key: null, false, or an empty text, list or object."""
    return not value and (value is None or value is False or isinstance(value, str | list | tuple | dict))


def read_json_text(value: Any) -> Any:
    """Return the list in JSON text, which many columns of files have. Return other values unchanged."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def read_chat_text(value: Any) -> Any:
    """Return the messages in JSON text. Return other values unchanged."""
    found = read_json_text(value)
    is_chat = (
        isinstance(found, list) and bool(found) and all(isinstance(each, dict) and "role" in each for each in found)
    )
    return found if is_chat else value


def unknown_key(place: str, key: str) -> RowError:
    """Return the error for a key that rllm does not use."""
    return RowError(
        f"{place}.{key}", "is not used by rllm", f"Remove {key!r}, or rename it. The page `Rows` lists all keys."
    )


def refuse(error: RowError, name: str) -> NoReturn:
    """Raise the error for an unknown key or part."""
    raise error


def read_messages(value: Any, place: str = "messages", unknown: Unknown = refuse) -> Chat:
    """Return messages in the normal form.

    Args:
        value: a list of messages, as found in data or in a request.
        place: the key of `value`, for errors.
        unknown: called for an unknown key or part that is not empty.

    Raises:
        RowError: a part of the messages cannot be used.
    """
    value = read_json_text(value)
    if not isinstance(value, list | tuple) or not value:
        is_list = isinstance(value, list | tuple)
        raise RowError(
            place, "is an empty list" if is_list else f"{shown(value)} instead of a list of messages", _EXAMPLE
        )
    messages, untrained = list[Message](), set[int]()
    for number, found in enumerate(value):
        if type(found) is dict and _is_normal(found):
            messages.append(found)
            continue
        message, is_trained = _Reader(f"{place}[{number}]", unknown).message(found)
        messages.append(message)
        if is_trained is False:
            untrained.add(number)
    return Chat(messages, frozenset(untrained))


_EXAMPLE = 'Write {"role": "user", "content": …} for each message.'


NORMAL_ROLES = frozenset(ROLES.values())


def _is_normal(found: dict[str, Any]) -> bool:
    """Return True if a message without calls and reasoning is in the normal form. This is fast, for large files."""
    role = found.get("role")
    if type(role) is not str or role not in NORMAL_ROLES or type(found.get("content")) is not str:
        return False
    call = found.get("tool_call_id")
    return len(found) == 2 or (len(found) == 3 and role == "tool" and type(call) is str and call != "")


TRAINED_KEYS, REASONING_KEYS = frozenset(TRAINED), frozenset(REASONING)


class _Reader:
    """The reader of the message at a place."""

    def __init__(self, place: str, unknown: Unknown) -> None:
        self._place = place
        self._unknown = unknown

    def message(self, found: Any) -> tuple[dict[str, Any], bool | None]:
        """Return the message, and whether it is trained. None if the message has no such key."""
        if not isinstance(found, dict):
            raise RowError(self._place, f"{shown(found)} instead of an object", _EXAMPLE)
        given = {key: value for key, value in found.items() if not is_empty(value) or key in ("content", *TRAINED)}
        role = self._role(given.pop("role", None))
        calls = self._calls(given, role)
        reasoning = self._reasoning(given, role)
        read: dict[str, Any] = {"role": role, "content": self._content(given, role, bool(calls or reasoning))}
        is_trained = self._is_trained(given, role)
        for key in ("name", *(("tool_call_id",) if role == "tool" else ())):
            if (value := given.pop(key, None)) is not None:
                read[key] = self._text(value, key)
        if reasoning:
            read["reasoning_content"] = reasoning
        if calls:
            read["tool_calls"] = calls
        self._check_unknown({key: value for key, value in given.items() if key not in WITHOUT_MEANING}, self._place)
        return read, is_trained

    def _check_unknown(self, rest: Mapping[str, Any], place: str) -> None:
        for key, value in rest.items():
            if not is_empty(value):
                self._unknown(unknown_key(place, key), key)

    def _role(self, role: Any) -> str:
        if isinstance(role, str) and role in ROLES:
            return ROLES[role]
        written = role.strip().lower() if isinstance(role, str) else ""
        instead = RENAMED.get(written, written if written in ROLES else None)
        hint = f"Rename it to {instead!r}." if instead else f"Roles are {', '.join(ROLES)}."
        problem = "is missing" if role is None else f"{shown(role)}, which is no role"
        raise RowError(f"{self._place}.role", problem, hint)

    def _content(self, given: dict[str, Any], role: str, may_be_missing: bool) -> str:
        place, content = f"{self._place}.content", given.pop("content", None)
        if isinstance(content, str):
            return content
        if content is None:
            # Clients send null for an empty response, and tools return it.
            if may_be_missing or role in ("assistant", "tool"):
                return ""
            raise RowError(place, "is missing", "Write text, or remove the message.")
        if not isinstance(content, list | tuple):
            hint = "Write the text in quotation marks." if role != "tool" else "Write the result as JSON text."
            raise RowError(place, f"{shown(content)} instead of text or a list of parts", hint)
        return self._parts(content, place)

    def _parts(self, parts: Sequence[Any], place: str) -> str:
        texts = list[str]()
        for number, part in enumerate(parts):
            where = f"{place}[{number}]"
            if not isinstance(part, dict):
                raise RowError(where, f"{shown(part)} instead of an object", 'Write {"type": "text", "text": …}.')
            kind = str(part.get("type") or "text")
            if (key := TEXT_PARTS.get(kind)) is not None:
                texts.append(self._text(part.get(key), key, where))
                others = part.keys() - {"type", key} - WITHOUT_MEANING
                self._check_unknown({name: part[name] for name in others}, where)
            else:
                hint = OTHER_PARTS.get(kind, "Remove the part. Prompts contain only text.")
                self._unknown(RowError(where, f"has type {kind!r:.40}, which is not text", hint), kind)
        return "".join(texts)

    def _reasoning(self, given: dict[str, Any], role: str) -> str:
        if REASONING_KEYS.isdisjoint(given):
            return ""
        found = {key: self._text(given.pop(key), key) for key in REASONING if key in given}
        if len(set(found.values())) > 1:
            raise RowError(self._place, f"has different values of {' and '.join(found)}", "Remove all but one.")
        key, text = next(iter(found.items()), ("", ""))
        if text and role != "assistant":
            raise RowError(
                f"{self._place}.{key}", f"is in a message of role {role!r}", "Remove it, or correct the role."
            )
        return text

    def _calls(self, given: dict[str, Any], role: str) -> list[dict[str, Any]]:
        if "tool_calls" not in given and "function_call" not in given:
            return []
        found, old = read_json_text(given.pop("tool_calls", ())), given.pop("function_call", None)
        place = f"{self._place}.tool_calls"
        if old is not None:
            if found:
                raise RowError(self._place, "has function_call and tool_calls", "Remove function_call.")
            place, found = f"{self._place}.function_call", [{"function": old}]
        if not isinstance(found, list | tuple):
            raise RowError(place, f"{shown(found)} instead of a list of calls", _CALL)
        if found and role != "assistant":
            raise RowError(place, f"is in a message of role {role!r}", "Remove it, or correct the role.")
        places = [place] if old is not None else [f"{place}[{number}]" for number in range(len(found))]
        return [self._call(call, where) for call, where in zip(found, places, strict=True)]

    def _call(self, call: Any, place: str) -> dict[str, Any]:
        if not isinstance(call, dict):
            raise RowError(place, f"{shown(call)} instead of an object", _CALL)
        given = {key: value for key, value in call.items() if value is not None}
        if "function" not in given and "name" in given:  # the call itself, without the key `function`
            given = {key: value for key, value in given.items() if key in OF_CALLS} | {
                "function": {key: value for key, value in given.items() if key not in OF_CALLS}
            }
        function = given.get("function")
        if given.get("type", "function") != "function" or not isinstance(function, dict):
            raise RowError(place, "has no object `function`", _CALL)
        written = dict(function)
        if "arguments" not in written and not is_empty(written.get("parameters")):
            raise RowError(f"{place}.function.parameters", "is not used by rllm", "Rename it to 'arguments'.")
        if is_empty(written.get("name")):
            raise RowError(f"{place}.function.name", "is missing", _CALL)
        read = {
            "type": "function",
            "function": {
                "name": self._text(written.pop("name"), "name", f"{place}.function"),
                "arguments": read_arguments(written.pop("arguments", None), f"{place}.function.arguments"),
            },
        }
        if not is_empty(name := given.get("id")):
            read = {"id": self._text(name, "id", place)} | read
        self._check_unknown({key: value for key, value in given.items() if key not in OF_CALLS}, place)
        self._check_unknown(written, f"{place}.function")
        return read

    def _is_trained(self, given: dict[str, Any], role: str) -> bool | None:
        if TRAINED_KEYS.isdisjoint(given):
            return None
        found = {key: given.pop(key) for key in TRAINED if key in given}
        found = {key: value for key, value in found.items() if value is not None}
        for key, value in found.items():
            if value not in (0, 1) or isinstance(value, str):
                hint = "Write 1 to train the message, or 0. Other weights are not supported."
                raise RowError(f"{self._place}.{key}", shown(value), hint)
            if value and role != "assistant":
                hint = "Remove it. Only assistant messages are trained."
                raise RowError(f"{self._place}.{key}", f"is in a message of role {role!r}", hint)
        if len(set(map(bool, found.values()))) > 1:
            raise RowError(self._place, f"has different values of {' and '.join(found)}", "Remove all but one.")
        return next((bool(value) for value in found.values()), None)

    def _text(self, value: Any, key: str, place: str | None = None) -> str:
        if not isinstance(value, str):
            raise RowError(f"{place or self._place}.{key}", f"{shown(value)} instead of text", "Write text.")
        return value


_CALL = 'Write {"type": "function", "function": {"name": …, "arguments": …}}.'


def read_arguments(value: Any, place: str) -> str:
    """Return the arguments of a tool call as JSON text. Missing and blank arguments are ``{}``.

    Raises:
        RowError: they are not an object, or the text is not JSON.
    """
    hint = 'Write an object, such as {"city": "Oslo"}, or its JSON text.'
    if value is None or (isinstance(value, str) and not value.strip()):
        return "{}"
    try:
        found = json.loads(value, parse_constant=_refuse_constant) if isinstance(value, str) else value
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise RowError(place, f"is not JSON ({error})", hint) from error
    if not isinstance(found, dict):
        raise RowError(place, f"{shown(value)} instead of an object", hint)
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
