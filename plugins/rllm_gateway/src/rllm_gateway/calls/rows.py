"""What a store of calls holds. Every `Mapping`, and every `Any`, is JSON data: keys are str."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rllm_core.data.record import Call


@dataclass(frozen=True, kw_only=True)
class SessionRow:
    """One try of an attempt at a task."""

    id: str
    """No other session of the store has it."""
    run: str
    """Name of the run."""
    attempt: str
    """Uid of the attempt."""
    retry: int
    """Which try of the attempt, from 0."""
    metadata: Mapping[str, Any]
    """What else is known of it, the same for all roles."""
    key_hash: str
    """Hash of the key that its calls are sent with."""
    opened: float
    """Seconds of Unix time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CallRow:
    """A model call of a session.

    The prompt is stored as what follows the parent's prompt and response. A prompt that does not begin with all of
    these (thoughts were cut, a message was edited) says in `kept_tokens` and `kept_messages` how far the two agree.
    """

    id: str
    """No other call of the session has it."""
    session: str
    """Id of its session."""
    role: str
    """Who asked, such as ``agent``."""
    parent: str | None
    """Id of the call that this one continues; None: `call.new_ids` and `messages` are whole."""
    kept_tokens: int | None = None
    """How many tokens of the parent's prompt and response stand before `call.new_ids`; None: all of them."""
    kept_messages: int | None = None
    """How many of the parent's messages, its reply being the last, stand before `messages`; None: all of them."""
    call: Call
    """What was sampled: token ids, log-probs, weight versions."""
    messages: Sequence[Any]
    """Messages of the prompt since the parent's reply."""
    reply: Any
    """The reply as a message; None: the client took none, or `rllm` rendered none."""
    sent: Mapping[str, Any]
    """Parameters of the request as they were sent, tools included. Kept once for all calls that share them."""
    outcomes: Mapping[str, str]
    """What became of each parameter, such as ``honoured``."""
    client_retry: int | None = None
    """Which retry of a request the client says that this is; None: it says nothing."""
    traceparent: str | None = None
    """The header of this name, as it was sent."""
    delivered: bool = False
    """Whether the reply reached the client. Read back, not written: a `DeliveryRow` says it once the call is stored."""


@dataclass(frozen=True, kw_only=True)
class DeliveryRow:
    """The reply of a call reached its client. A second one of the call changes nothing."""

    session: str
    call: str
    """Id of the call."""
    at: float
    """Seconds of Unix time."""


@dataclass(frozen=True, kw_only=True)
class RewardRow:
    """A reward that was given to a role of a session. The last one counts."""

    session: str
    role: str
    value: float
    at: float
    """When it was given, in seconds of Unix time."""


@dataclass(frozen=True, kw_only=True)
class EndRow:
    """A session has ended. It takes no calls and rewards after it."""

    session: str
    ending: str
    """How it ended."""
    at: float
    """Seconds of Unix time."""


Row: TypeAlias = SessionRow | CallRow | DeliveryRow | RewardRow | EndRow
