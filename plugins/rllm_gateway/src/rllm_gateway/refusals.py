"""The error for rejected requests: the reason, and a header that tells clients if they should retry."""

from __future__ import annotations

from typing import Literal

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
