"""Errors that reject a request at once, with their HTTP status. Later errors are in the request's result instead.

The statuses follow from the clients' behaviour: clients retry 408, 409, 429 and all 5xx for minutes, and all other
statuses are final. So an error that a retry cannot fix has a final status.
"""

from __future__ import annotations

from rllm_tinker_server.messages import RequestRefused

BAD_REQUEST = 400
NOT_TEXT = "This server reads tokens only: no images, no audio."


class NotFound(RequestRefused):
    """There is no such model, session, checkpoint or route."""

    status = 404


class Forbidden(RequestRefused):
    """The client may not read this resource."""

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
