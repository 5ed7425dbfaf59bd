"""Reading a request: its fields by type, and what becomes of each parameter. What is wrong is refused with its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import orjson

from rllm_gateway.refusals import invalid

Json = dict[str, Any]
SHOWN = 80


def json_object(body: bytes, what: str = "The body") -> Json:
    """The object that a body is, without the keys that are null: clients send these for what is not given.

    `what` is how an error calls it.

    Raises:
        RefusedError: it is no JSON, no object, or nested more deeply than can be written again.
    """
    try:
        found = orjson.loads(body)
        # orjson reads 1024 levels and writes 254; what is read has to be stored.
        orjson.dumps(found)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError) as error:
        raise invalid(f"{what} is not JSON that can be read: {error}.") from None
    if not isinstance(found, dict):
        raise invalid(f"{what} is JSON, but not an object: {_name_of(found)}.")
    return {key: value for key, value in found.items() if value is not None}


def text(found: Mapping[str, Any], key: str, where: str = "") -> str:
    """A text that has to be there."""
    value = found.get(key)
    if not isinstance(value, str):
        raise _wrong(value, key, where, "a text")
    return value


def optional_text(found: Mapping[str, Any], key: str, where: str = "") -> str:
    """A text; empty where there is none."""
    return "" if found.get(key) is None else text(found, key, where)


def whole(found: Mapping[str, Any], key: str, least: int, most: int) -> int | None:
    """A whole number; None where there is none."""
    value = found.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _wrong(value, key, "", f"a whole number from {least} to {most}")
    return value


def truth(found: Mapping[str, Any], key: str) -> bool:
    """A boolean; false where there is none."""
    value = found.get(key, False)
    if not isinstance(value, bool):
        raise _wrong(value, key, "", "true or false")
    return value


def objects(found: Mapping[str, Any], key: str, where: str = "") -> Sequence[Json]:
    """A list of objects; empty where there is none."""
    value = found.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise _wrong(value, key, where, "a list of objects")
    return value


def mapping(found: Mapping[str, Any], key: str, where: str = "") -> Json:
    """An object; empty where there is none."""
    value = found.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(value, key, where, "an object")
    return value


def stop_texts(found: Mapping[str, Any], key: str, most: int) -> tuple[str, ...]:
    """Texts that end a reply: one, or a list."""
    value = found.get(key)
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > most or not all(isinstance(each, str) and each for each in texts):
        raise _wrong(value, key, "", f"up to {most} texts that are not empty")
    return tuple(dict.fromkeys(texts))


def arguments(written: str, where: str) -> str:
    """Arguments of a call of a tool in a message: the JSON of an object. Nothing written is an empty one."""
    if not written.strip():
        return "{}"
    try:
        found = orjson.loads(written)
        orjson.dumps(found)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        found = None
    if not isinstance(found, dict):
        raise _wrong(written, "arguments", where, "the JSON of an object")
    return written


def _wrong(value: Any, key: str, where: str, wanted: str) -> Exception:
    param = f"{where}.{key}" if where else key
    shown = f"{value!r:.{SHOWN}}" if isinstance(value, str | int | float) else _name_of(value)
    return invalid(f"{param} is {shown}; it must be {wanted}.", param)


def _name_of(value: Any) -> str:
    return {list: "a list", dict: "an object", type(None): "null", bool: "a boolean"}.get(type(value), "a number")


Outcome = Literal["honoured", "overruled", "ignored"]
IGNORE = "Set rllm.workflow.workflow_args.unsupported=ignore to ignore it. The session then counts such requests."
SAMPLERS_OF_OTHERS = frozenset(
    ("top_k", "min_p", "typical_p", "repetition_penalty", "min_tokens", "frequency_penalty", "presence_penalty", "seed")
)
"""Parameters of sampling that servers beside OpenAI's know; the run decides how is sampled."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The parameters of an API."""

    honoured: frozenset[str]
    overruled: frozenset[str]
    """The run has a value of its own, which wins."""
    ignored: frozenset[str]
    """Accepted, as they ask for nothing that changes what is sampled."""
    refused: Mapping[str, tuple[Any, ...]]
    """Name -> values that ask for nothing. Any other is a 400, and so is every parameter that is in no class."""
    held: frozenset[str] = frozenset()
    """What names a part of the conversation that a server keeps. A 400 in every session: ignored, it would drop that
    part without a word."""

    def outcomes(self, body: Mapping[str, Any], unsupported: Literal["refuse", "ignore"]) -> dict[str, Outcome]:
        """What becomes of each parameter of a request.

        Raises:
            RefusedError: nothing can act on one of them, and `unsupported` is ``refuse``; or one is `held`.
        """
        found = dict[str, Outcome]()
        for name, value in body.items():
            if name in self.held:
                refuse_held(name)
            if name in self.honoured:
                found[name] = "honoured"
            elif name in self.overruled or name in SAMPLERS_OF_OTHERS:
                found[name] = "overruled"
            elif name in self.ignored or value in self.refused.get(name, ()):
                found[name] = "ignored"
            else:
                refuse_unless_ignored(name, unsupported)
                found[name] = "ignored"
        return found


def refuse_held(name: str) -> NoReturn:
    """Raise RefusedError for what names a part of the conversation that a server keeps."""
    raise invalid(
        f"{name} is not supported: nothing of a conversation is kept for later requests. Send all messages each time.",
        name,
        "unsupported_parameter",
    )


def refuse_unless_ignored(name: str, unsupported: Literal["refuse", "ignore"]) -> None:
    """Raise RefusedError for a part of a request that nothing can act on, unless the session ignores such parts."""
    if unsupported == "refuse":
        raise invalid(
            f"{name:.80} is not supported, or not with this value. {IGNORE}",
            f"{name:.80}",
            "unsupported_parameter",
        )
