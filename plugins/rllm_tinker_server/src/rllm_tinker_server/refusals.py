"""How a request can be refused at once, with its HTTP status. What fails later is told through its result instead.

The statuses follow from how clients react: 408, 409, 429 and all of 5xx are sent again for minutes, everything else
below is final. So nothing that asking again cannot fix has one of those.
"""

from __future__ import annotations

from rllm_tinker_server.messages import RequestRefused

BAD_REQUEST = 400
NOT_TEXT = "This server reads tokens only: no images, no audio."


class NotFound(RequestRefused):
    """There is no such model, session, checkpoint or route."""

    status = 404


class Forbidden(RequestRefused):
    """Whoever asks has no right to it."""

    status = 403


class Gone(RequestRefused):
    """There was such a thing, but no longer. A client that was waiting for a sample asks for a new one."""

    status = 410


class Unsupported(RequestRefused):
    """The body is in a format that this server does not read."""

    status = 415


class Busy(RequestRefused):
    """Too much is waiting already; clients ask again after a pause."""

    status = 429


class ServerError(Exception):
    """The request was right, but this machine cannot do it; the message says what to do."""


def status_of(refused: RequestRefused) -> int:
    """The HTTP status of a refusal."""
    return int(getattr(refused, "status", BAD_REQUEST))
