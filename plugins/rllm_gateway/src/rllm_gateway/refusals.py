"""Requests that are not answered: why, and whether a client should try again."""

from __future__ import annotations

from typing import Literal

Kind = Literal["invalid", "authentication", "permission", "not_found", "conflict", "too_large", "busy", "failed"]
RETRY_AFTER = 1
"""Seconds that clients wait before they ask again."""


class RefusedError(Exception):
    """A request that is answered with an error, in the shape of the client's own API."""

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
        """What clients decide by whether they ask again: those of OpenAI and Anthropic repeat 409 and 500 unasked."""
        if self.status in (429, 503):
            return [(b"retry-after", str(RETRY_AFTER).encode())]
        return [(b"x-should-retry", b"false")]


def invalid(message: str, param: str | None = None, code: str | None = None) -> RefusedError:
    """A request that is wrong in itself: 400."""
    return RefusedError(400, "invalid", message, param=param, code=code)
