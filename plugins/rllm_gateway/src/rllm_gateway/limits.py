"""How much a gateway takes on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is above is refused, never held."""

    body_bytes: int = 4 << 20
    """Of one request: a million tokens of text."""
    path_bytes: int = 1024
    """Of a request's path."""
    in_flight: int = 4096
    """Requests at a time."""
    in_flight_of_session: int = 256
    """Requests at a time of one session."""
    role_length: int = 64
    """Characters of a role's name."""
    policy_seconds: float = 60.0
    """How long a request waits for a policy where none is attached."""
    keep_alive_seconds: float = 10.0
    """How often a stream that waits is given a sign of life; the first comes with the headers."""
    open_sessions: int = 10_000
    """Sessions at a time that clients have opened."""
    closed_sessions: int = 10_000
    """How many closed sessions are remembered, so that late requests are told so."""
