"""What this server allows before it refuses, evicts or gives up. One place for every bound."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds, bytes and counts."""

    long_poll: float = 20.0
    """Seconds that a request for a pending result is held; clients wait 45."""
    max_result_bytes: int = 256 * MIB
    """Of all finished results together."""
    keep_retrieved: float = 60.0
    """Seconds that a result is kept after it was first fetched, for a client whose connection broke meanwhile."""
    keep_unretrieved: float = 3600.0
    max_pending_samples: int = 20_000
    max_samples_per_request: int = 1024

    turn_deadline: float = 120.0
    """Seconds that a training request waits for an earlier one that has not arrived."""
    max_turns_ahead: int = 1024
    """How far a training request may run ahead of the next one to execute."""
    max_waiting_bytes: int = 512 * MIB
    """Bodies of training requests that wait for their turn, of all models together."""

    session_idle: float = 600.0
    """Seconds without heartbeat or request after which a session ends."""
    max_models: int = 16
    max_snapshots: int = 32
    """Weights for sampling that are held in memory."""
    max_ended_sessions: int = 1024
    """Sessions that are remembered after their end, to tell clients what became of them."""

    max_body_bytes: int = 64 * MIB
    fwdbwd_max_chunk_len: int = 1024
    """Examples per request; clients cut what they send by this."""
    fwdbwd_max_chunk_bytes: int = 5_000_000
    sweep_interval: float = 1.0
