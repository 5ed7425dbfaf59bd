"""Read the fields of a request by type, and classify its parameters. An error names the wrong field."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn

import orjson

from rllm.rows.valid_json import has_surrogates, with_valid_text
from rllm_core.notices import warn_once

Kind = Literal["invalid", "authentication", "permission", "not_found", "conflict", "too_large", "busy", "failed"]
RETRY_AFTER = 1
"""Seconds that clients wait before they retry."""


class RefusedError(Exception):
    """A request that is answered with an error, in the format of the client's API."""

    def __init__(
        self, status: int, kind: Kind, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind: Kind = kind
        self.message = message
        self.param = param
        """The part of the request that is wrong, such as ``messages[0].role``."""
        self.code = code

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers that tell clients if they should retry.

        Without them, OpenAI's and Anthropic's clients retry after a 409 and a 500.
        """
        if self.status in (429, 503):
            return [(b"retry-after", str(RETRY_AFTER).encode())]
        return [(b"x-should-retry", b"false")]


def invalid(message: str, param: str | None = None, code: str | None = None) -> RefusedError:
    """Return the error for an invalid request, with HTTP status 400."""
    return RefusedError(400, "invalid", message, param=param, code=code)


Json = dict[str, Any]
SHOWN = 80
MOST_CHOICES = 128
MOST_TOP = 20
MOST_STOPS = 16


def json_object(body: bytes, what: str = "The body") -> Json:
    """Parse a JSON object, and remove keys that are null. Clients send null for parameters that are not set.

    Args:
        body: the JSON.
        what: name of `body` in the message of an error.

    Raises:
        RefusedError: `body` is not JSON, is not an object, or is nested more deeply than orjson can write.
    """
    try:
        found = _parse(body)
        # orjson reads 1024 levels but writes only 254. The gateway must be able to store each request it accepts.
        orjson.dumps(found)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError) as error:
        raise invalid(f"{what} cannot be read as JSON: {error}.") from None
    if not isinstance(found, dict):
        raise invalid(f"{what} is JSON, but not an object: {_name_of(found)}.")
    return {key: value for key, value in found.items() if value is not None}


def text(found: Mapping[str, Any], key: str, where: str = "") -> str:
    """Return a required string."""
    value = found.get(key)
    if not isinstance(value, str):
        raise _wrong(value, key, where, "a string")
    return value


def optional_text(found: Mapping[str, Any], key: str, where: str = "") -> str:
    """Return an optional string. Empty if the key is missing."""
    return "" if found.get(key) is None else text(found, key, where)


def read_integer(found: Mapping[str, Any], key: str, least: int, most: int) -> int | None:
    """Return an integer from `least` to `most`. None if the key is missing."""
    value = found.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _wrong(value, key, "", f"an integer from {least} to {most}")
    return value


def read_count(found: Mapping[str, Any], key: str) -> int:
    """Return the number of requested choices. 1 if the key is missing."""
    return read_integer(found, key, 1, MOST_CHOICES) or 1


def read_top_logprobs(found: Mapping[str, Any], key: str) -> int:
    """Return the number of most likely tokens to return with each token. 0 if the key is missing."""
    return read_integer(found, key, 0, MOST_TOP) or 0


def truth(found: Mapping[str, Any], key: str) -> bool:
    """Return a boolean. False if the key is missing."""
    value = found.get(key, False)
    if not isinstance(value, bool):
        raise _wrong(value, key, "", "true or false")
    return value


def objects(found: Mapping[str, Any], key: str, where: str = "") -> Sequence[Json]:
    """Return a list of objects. Empty if the key is missing."""
    value = found.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise _wrong(value, key, where, "a list of objects")
    return value


def mapping(found: Mapping[str, Any], key: str, where: str = "") -> Json:
    """Return an object. Empty if the key is missing."""
    value = found.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(value, key, where, "an object")
    return value


def stop_texts(found: Mapping[str, Any], key: str, most: int = MOST_STOPS) -> tuple[str, ...]:
    """Return the stop strings of a request, which may be one string or a list of at most `most` strings."""
    value = found.get(key)
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > most or not all(isinstance(each, str) and each for each in texts):
        raise _wrong(value, key, "", f"up to {most} strings that are not empty")
    return tuple(dict.fromkeys(texts))


def _parse(body: bytes) -> Any:
    """Parse JSON. Clients send halves of characters, for example of file names that are not UTF-8."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if not has_surrogates(body):
            raise
        try:
            found = with_valid_text(json.loads(body))
        except (ValueError, RecursionError):
            raise error from None
        warn_once("a request has characters that are not valid Unicode. Each becomes U+FFFD.")
        return found


def arguments(written: str, where: str) -> str:
    """Check that the arguments of a tool call in a message are a JSON object, and return them.

    Returns ``{}`` if the string is blank.
    """
    if not written.strip():
        return "{}"
    try:
        found = orjson.loads(written)
        orjson.dumps(found)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        found = None
    if not isinstance(found, dict):
        raise _wrong(written, "arguments", where, "a JSON object in a string")
    return written


def _wrong(value: Any, key: str, where: str, expected: str) -> Exception:
    param = f"{where}.{key}" if where else key
    shown = f"{value!r:.{SHOWN}}" if isinstance(value, str | int | float) else _name_of(value)
    return invalid(f"{param} is {shown}; it must be {expected}.", param)


def _name_of(value: Any) -> str:
    return {list: "a list", dict: "an object", type(None): "null", bool: "a boolean"}.get(type(value), "a number")


Outcome = Literal["honored", "overruled", "ignored"]
IGNORE = "Set rllm.workflow.workflow_args.unsupported=ignore to ignore it. The session then counts such requests."


@dataclass(frozen=True)
class SamplerValues:
    """The values of a sampling parameter that servers accept."""

    least: float
    most: float = math.inf
    off: float | None = None
    """Value that changes nothing, also in a run. None: every value is replaced by the run's."""

    def outcome(self, name: str, value: Any) -> Outcome:
        """Return ``honored`` for `off`, and else ``overruled``.

        Raises:
            RefusedError: no server accepts the value.
        """
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.least <= value <= self.most:
            bounds = f"at least {self.least:g}" if self.most == math.inf else f"from {self.least:g} to {self.most:g}"
            raise _wrong(value, name, "", "a number" if self.least == -math.inf else f"a number {bounds}")
        return "honored" if value == self.off else "overruled"


SAMPLERS: Mapping[str, SamplerValues] = {
    "temperature": SamplerValues(0, 2),
    "top_p": SamplerValues(0, 1),
    "top_k": SamplerValues(-1),
    "min_p": SamplerValues(0, 1, off=0),
    "typical_p": SamplerValues(0, 1, off=1),
    "repetition_penalty": SamplerValues(0, off=1),
    "frequency_penalty": SamplerValues(-2, 2, off=0),
    "presence_penalty": SamplerValues(-2, 2, off=0),
    "min_tokens": SamplerValues(0, off=0),
    "seed": SamplerValues(-math.inf),
}
"""Sampling parameters. The run's settings replace them in every API, also where only some servers accept them."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The classes of an API's parameters."""

    honored: frozenset[str]
    """Parameters that the gateway uses."""
    overruled: frozenset[str]
    """Parameters that the run's own settings replace."""
    ignored: frozenset[str]
    """Parameters that are accepted, because they do not change the sampled tokens."""
    refused: Mapping[str, tuple[Any, ...]]
    """Parameter name -> values that have no effect and are accepted. Any other value is answered with HTTP 400.
    A parameter that is in no class is answered with HTTP 400 too."""
    held: frozenset[str] = frozenset()
    """Parameters that refer to a conversation stored on the server. They are answered with HTTP 400 in every session.
    If the gateway ignored them, that part of the conversation would be dropped silently."""

    def outcomes(self, body: Mapping[str, Any], unsupported: Literal["refuse", "ignore"]) -> dict[str, Outcome]:
        """Return the outcome of each parameter of a request.

        Raises:
            RefusedError: a parameter is not supported and `unsupported` is ``refuse``, or a parameter is in `held`.
        """
        found = dict[str, Outcome]()
        for name, value in body.items():
            if name in self.held:
                reject_stored_reference(name)
            if name in self.honored:
                found[name] = "honored"
            elif (sampler := SAMPLERS.get(to_snake_case(name))) is not None:
                found[name] = sampler.outcome(name, value)
            elif name in self.overruled:
                found[name] = "overruled"
            elif name in self.ignored or value in self.refused.get(name, ()):
                found[name] = "ignored"
            else:
                reject_unless_ignored(name, unsupported)
                found[name] = "ignored"
        return found


def to_snake_case(name: str) -> str:
    """Return the name of a parameter of Google's API as other APIs spell it."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: f"_{found[1].lower()}", name)


def reject_stored_reference(name: str) -> NoReturn:
    """Raise RefusedError for a parameter that refers to a conversation stored on the server."""
    raise invalid(
        f"{name} is not supported, because the gateway stores no conversation for later requests. "
        "Send all messages each time.",
        name,
        "unsupported_parameter",
    )


def reject_unless_ignored(name: str, unsupported: Literal["refuse", "ignore"]) -> None:
    """Raise RefusedError for an unsupported part of a request, unless the session ignores unsupported parts."""
    if unsupported == "refuse":
        raise invalid(
            f"{name:.80} is not supported, or not with this value. {IGNORE}",
            f"{name:.80}",
            "unsupported_parameter",
        )


class MessageParts:
    """Reads the text of messages. Parts without text are rejected, or counted as ignored."""

    parameter: ClassVar[str]
    """Parameter with the messages, for errors and counters."""
    text_keys: ClassVar[Mapping[str, str]]
    """Type of a part with text -> key of the text in the part."""

    def __init__(self, unsupported: Literal["refuse", "ignore"], outcomes: dict[str, Outcome]) -> None:
        self._unsupported = unsupported
        self._outcomes = outcomes

    def read(self, content: Any, where: str) -> str:
        """Return the text of a string or of a list of parts. Empty if `content` is None. `where` is for errors."""
        if content is None or isinstance(content, str):
            return content or ""
        words = []
        for at, part in enumerate(objects({where: content}, where)):
            kind = text(part, "type", f"{where}[{at}]")
            if kind in self.text_keys:
                words.append(text(part, self.text_keys[kind], f"{where}[{at}]"))
            else:
                self.leave_out(kind)
        return "".join(words)

    def leave_out(self, kind: str) -> None:
        """Reject a part of this type, or count it as ignored."""
        name = f"{self.parameter}.{kind:.64}"
        reject_unless_ignored(name, self._unsupported)
        self._outcomes[name] = "ignored"
