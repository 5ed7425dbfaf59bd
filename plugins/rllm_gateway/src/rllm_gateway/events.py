"""Server-sent events."""

from __future__ import annotations

from typing import Any

import orjson

KEEP_ALIVE = b": waiting\n\n"
"""A comment: clients skip it, and what is between knows that the connection lives."""


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    """One event; clients of OpenAI's chat API want no name."""
    said = b"" if name is None else b"event: " + name.encode() + b"\n"
    return said + b"data: " + orjson.dumps(data) + b"\n\n"
