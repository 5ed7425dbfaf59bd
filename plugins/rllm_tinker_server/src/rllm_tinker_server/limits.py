"""Limits of this server. Beyond a limit it rejects requests, evicts stored objects or gives up."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class TinkerLimits:
    """Seconds, bytes and counts."""

    long_poll: float = 20.0
    """Seconds that a request waits for a pending result. Clients wait 45 seconds."""
    max_result_bytes: int = 256 * MIB
    """Maximum size of all finished results together."""
    keep_retrieved: float = 60.0
    """Seconds to keep a result after its first retrieval, for a client whose connection broke."""
    keep_unretrieved: float = 3600.0
    max_pending_samples: int = 40_000
    """Maximum number of pending requests for samples. Keys share it (`shares.has_share`): one key can have half."""
    max_samples_per_request: int = 1024
    max_pending_sample_tokens: int = 1 << 27
    """Maximum number of tokens in prompts and responses of all pending samples. Keys share it. Room for both is
    reserved when a sample is queued."""

    turn_deadline: float = 120.0
    """Seconds that a training request waits for an earlier one that has not arrived."""
    max_turns_ahead: int = 1024
    """How far a training request may run ahead of the next one to execute."""
    max_remembered_turns: int = 4096
    """Training requests of a model whose kind is remembered, to tell one that is sent again from another."""
    max_waiting_bytes: int = 512 * MIB
    """Maximum size of the bodies of waiting training requests, for all models together. Keys share it."""

    session_idle: float = 600.0
    """Seconds without heartbeat or request after which a session ends."""
    heartbeat_missed: float = 60.0
    """Seconds without heartbeat or request after which a session gives way to others. Clients send one every 10 s."""
    max_sessions: int = 4096
    """Maximum number of open sessions. Keys share it."""
    max_models: int = 16
    max_models_per_key: int | None = None
    """None means that one key can have all `max_models`."""
    max_samplers: int = 4096
    """Sampling sessions of a session: each save_weights_and_get_sampling_client makes one."""
    max_snapshots: int = 32
    """Maximum number of sets of weights for sampling in memory, for all keys together (`Snapshots.put`)."""
    max_ended_sessions: int = 1024
    """Sessions that are remembered after their end, to tell clients what became of them."""

    max_metadata_bytes: int = 65_536
    """Maximum size of a client's metadata of a session, a model or a checkpoint."""
    max_body_bytes: int = 64 * MIB
    max_held_bytes: int = 256 * MIB
    """Maximum size of all bodies that arrive or are read. Keys share it."""
    read_seconds: float = 60.0
    """Maximum seconds for a request to arrive."""
    stand_in_losses: bool = False
    """Accept `messages.STAND_IN`."""
    max_sparse_numbers: int = 1 << 24
    """Maximum numbers in a request's sparse tensors after expansion: the number of dense values in the largest body."""
    fwdbwd_max_chunk_len: int = 1024
    """Maximum examples per request. Clients split their requests by this limit."""
    fwdbwd_max_chunk_bytes: int = 5_000_000
    sweep_interval: float = 1.0
    checkpoint_sweep_interval: float = 60.0
    """Seconds between looks for expired checkpoints."""
