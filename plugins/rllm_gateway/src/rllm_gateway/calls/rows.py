"""The rows of a store of calls, and its errors. Every `Mapping`, and every `Any`, is JSON data: keys are str."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.version_spans import VersionSpan, check_version_spans
from rllm_core.errors import RllmError


class StoreError(RllmError):
    """A row could not be written, or the store could not be opened or read. Nothing of the row is in the store."""


class SealedError(StoreError):
    """The session has ended: it takes no more calls and rewards."""


class UnknownSessionError(StoreError):
    """There is no such session, or it was pruned."""


class DuplicateError(StoreError):
    """The store has a row with this id."""


class DamagedError(StoreError):
    """What was read is not what was written."""


NAME, GROUP = "name", "group"
"""Keys of `CallRow.parameters`."""


@dataclass(frozen=True, kw_only=True)
class SessionRow:
    """One try of an attempt at a task."""

    id: str
    """No other session of the store has it."""
    run: str
    """Name of the run."""
    rollout: str
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
    """A model call of a session: its place in the conversation, its tokens, and what the client sent and got.

    The prompt is stored as what follows the parent's prompt and response. A prompt that does not begin with all of
    these (thoughts were cut, a message was edited) says in `kept_tokens` and `kept_messages` how far the two agree.

    Raises:
        ValueError: `logprobs` or `version_spans` do not cover the response.
    """

    id: str
    """No other call of the session has it."""
    session: str
    """Id of its session."""
    role: str
    """Who asked, such as ``agent``."""
    parent: str | None
    """Id of the call that this one continues; None: `new_ids` and `messages` are whole."""
    kept_tokens: int | None = None
    """How many tokens of the parent's prompt and response stand before `new_ids`; None: all of them."""
    kept_messages: int | None = None
    """How many of the parent's messages, its reply being the last, stand before `messages`; None: all of them."""
    prompt_digest: str
    """Digest of the whole prompt, chained over its messages."""
    new_ids: NDArray[np.int32]
    """(n_new,) tokens of the prompt that follow the parent's prompt and response; the whole prompt without a parent."""
    response_ids: NDArray[np.int32]
    """(n,) sampled tokens."""
    logprobs: NDArray[np.float32]
    """(n,) their log-probs in nats as the sampler reported them, NaN where it did not."""
    weight_version: int
    """Number of the oldest policy update that sampled a token of the response."""
    version_spans: tuple[VersionSpan, ...] = ()
    """Runs of tokens by weight version, in order. Empty: all tokens are of `weight_version`."""
    finish_reason: Literal["stop", "length"]
    started: float
    """When the engine was asked, in seconds of Unix time."""
    seconds: float
    """How long it took."""
    parameters: Mapping[str, Any]
    """Parameters of sampling, and `NAME` and `GROUP` of the trajectory if the request has them."""
    messages: Sequence[Any]
    """Messages of the prompt since the parent's reply."""
    response: Any
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

    def __post_init__(self) -> None:
        if self.logprobs.shape != self.response_ids.shape:
            raise ValueError(f"{self.logprobs.size} log-probs for {self.response_ids.size} response tokens")
        check_version_spans(self.version_spans, len(self.response_ids), self.weight_version)

    @property
    def name(self) -> str | None:
        """The name that the request gives its trajectory; None if it gives none."""
        return self.parameters.get(NAME)

    @property
    def group(self) -> str | None:
        """The group that the request puts its trajectory into; None if it names none."""
        return self.parameters.get(GROUP)


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


@dataclass(frozen=True, kw_only=True)
class SessionSummary:
    """A session without its calls."""

    session: SessionRow
    calls: int
    """How many calls are stored."""
    end: EndRow | None
    """None: it has not ended."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredSession:
    """A session with everything that belongs to it, as it was at one instant."""

    session: SessionRow
    calls: tuple[CallRow, ...]
    """In the order in which they were stored; a parent stands before its children."""
    rewards: tuple[RewardRow, ...]
    """In the order in which they were given."""
    end: EndRow | None
    """None: it had not ended."""

    def prompt_ids(self, call: str) -> NDArray[np.int32]:
        """(n,) token ids of the whole prompt of a call, put together from its ancestors.

        Raises:
            KeyError: the session has no such call.
            DamagedError: an ancestor is missing.
        """
        return prompt_ids(self._lineage(call))

    def messages(self, call: str) -> list[Any]:
        """Messages of the whole prompt of a call, put together from its ancestors. Raises as `prompt_ids`."""
        return messages(self._lineage(call))

    @cached_property
    def _by_id(self) -> dict[str, CallRow]:
        return {row.id: row for row in self.calls}

    def _lineage(self, call: str) -> list[CallRow]:
        try:
            return lineage(self._by_id[call], self._by_id)
        except LookupError as error:
            if call not in self._by_id:
                raise
            parent = error.args[0]
            raise DamagedError(
                "damaged-store",
                f"session {self.session.id!r}: call {parent!r}, which {call!r} continues, is lost.",
                "Copy the store back from a backup. The other sessions can still be read.",
            ) from None


def lineage(row: CallRow, calls: Mapping[str, CallRow]) -> list[CallRow]:
    """Return the calls from the first ancestor to the call itself. Raises KeyError if `calls` lacks an ancestor."""
    found = [row]
    while row.parent is not None:
        row = calls[row.parent]
        found.append(row)
    return found[::-1]


def count_tokens(rows: Sequence[CallRow]) -> int:
    """Return the number of tokens in the prompt and the reply of the last call of a lineage."""
    size = 0
    for row in rows:
        size = (size if row.kept_tokens is None else row.kept_tokens) + len(row.new_ids) + len(row.response_ids)
    return size


def prompt_ids(rows: Sequence[CallRow]) -> NDArray[np.int32]:
    """Return the (n,) token ids of the prompt of the last call of a lineage."""
    pieces = list[NDArray[np.int32]]()
    for row in rows:
        if row.kept_tokens is not None:
            pieces = [np.concatenate(pieces)[: row.kept_tokens]]
        pieces += [row.new_ids, row.response_ids]
    return np.concatenate(pieces[:-1])


def messages(rows: Sequence[CallRow]) -> list[Any]:
    """Return the messages of the prompt of the last call of a lineage. A reply that is None is left out."""
    found = list[Any]()
    for row in rows:
        found = [*found[: row.kept_messages], *row.messages]
        if row is not rows[-1] and row.response is not None:
            found.append(row.response)
    return found
