"""Errors that reject a request at once, with their HTTP status. Later errors are in the request's result instead.

The statuses follow from the clients' behavior: clients retry 408, 409, 429 and all 5xx for minutes, and all other
statuses are final. So an error that a retry cannot fix has a final status.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rllm_tinker_server.messages import RequestError

NOT_TEXT = "This server reads tokens only: no images, no audio."


class NotFoundError(RequestError):
    """There is no such model, session, checkpoint or route."""

    status = 404


class ForbiddenError(RequestError):
    """The client may not read this resource."""

    status = 403


class GoneError(RequestError):
    """There was such a thing, but no longer. A client that was waiting for a sample asks for a new one."""

    status = 410


class UnsupportedFormatError(RequestError):
    """The body is in a format that this server does not read."""

    status = 415


class BusyError(RequestError):
    """Too much is waiting already; clients ask again after a pause."""

    status = 429


RETRY_AFTER = 2
"""Seconds that clients should pause after `BusyError`. The official client doubles its own pause each time."""


class ServerError(Exception):
    """The request was right, but this machine cannot do it; the message says what to do."""


def json_object(body: bytes) -> dict[str, Any]:
    """Raises RequestError when the body is not a JSON object."""
    try:
        found = json.loads(body, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The body is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise RequestError(f"The body is JSON, but not an object: {type(found).__name__}.")
    return found


def number_of(found: Mapping[str, Any], key: str) -> int:
    """A whole number of the request, such as its ``seq_id``."""
    value = found.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise RequestError(f"{key} is {value!r:.80}. It must be a whole number, 0 or more.")
    return value


def optional_number_of(found: Mapping[str, Any], key: str) -> int | None:
    """As `number_of`; None where there is none."""
    return None if found.get(key) is None else number_of(found, key)


def text_of(found: Mapping[str, Any], key: str) -> str:
    value = found.get(key)
    if not isinstance(value, str) or not value:
        raise RequestError(f"{key} is {value!r:.80}. It must be a text.")
    return value


def metadata_of(found: Mapping[str, Any], max_bytes: int) -> dict[str, Any] | None:
    """Return a client's metadata of a session, a model or a checkpoint. None if the request has no metadata."""
    value = found.get("user_metadata")
    if value is not None and not isinstance(value, dict):
        raise RequestError(f"user_metadata is of type {type(value).__name__}. It must be an object.")
    if len(json.dumps(value)) > max_bytes:
        raise RequestError(f"user_metadata is larger than {max_bytes} bytes. Keep it short.")
    return value


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")
