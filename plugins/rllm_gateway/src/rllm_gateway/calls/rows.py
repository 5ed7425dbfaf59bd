"""The rows of a store of calls, and its errors. Every `Mapping` and every `Any` is JSON data, with keys of type str."""

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
    """A row could not be written, or the store could not be opened or read. No part of the row is in the store."""


NAME, GROUP = "name", "group"
"""Keys of `CallRow.parameters`."""


@dataclass(frozen=True, kw_only=True)
class SessionRow:
    """A session: one try of a rollout."""

    id: str
    """Id of the session, unique in the store."""
    run: str
    """Name of the run."""
    rollout: str
    """Uid of the rollout."""
    retry: int
    """Number of the rollout's try, from 0."""
    metadata: Mapping[str, Any]
    """Other data of the session, the same for all roles."""
    key_hash: str
    """Hash of the session's API key."""
    opened: float
    """Time at which it was opened, as Unix time in seconds."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CallRow:
    """A model call of a session: its parent call, its tokens, the client's request and the response.

    The prompt is stored as the part after the parent's prompt and response. A prompt may begin with only a part of the
    parent's prompt and response, for example if reasoning was cut or a message was edited. `kept_tokens` and
    `kept_messages` then contain the length of the common part.

    Raises:
        ValueError: `logprobs` or `version_spans` do not cover the response.
    """

    id: str
    """Id of the call, unique in the session."""
    session: str
    """Id of the session."""
    role: str
    """Role of the agent that sent the request, such as ``agent``."""
    parent: str | None
    """Id of the call that this call continues. None: `new_ids` and `messages` are the whole prompt."""
    kept_tokens: int | None = None
    """Number of tokens of the parent's prompt and response that come before `new_ids`. None: all of them."""
    kept_messages: int | None = None
    """Number of the parent's messages, its response included, that come before `messages`. None: all of them."""
    prompt_digest: str
    """Digest of the whole prompt, chained over its messages."""
    new_ids: NDArray[np.int32]
    """(n_new,) prompt tokens after the parent's prompt and response. Without a parent, the whole prompt."""
    response_ids: NDArray[np.int32]
    """(n,) sampled tokens."""
    logprobs: NDArray[np.float32]
    """(n,) log-probs of the sampled tokens in nats, from the sampler. NaN if it reported none."""
    weight_version: int
    """Oldest weight version, in policy updates, that sampled a token of the response."""
    version_spans: tuple[VersionSpan, ...] = ()
    """Spans of response tokens with their weight version, in order. Empty: `weight_version` sampled all tokens."""
    finish_reason: Literal["stop", "length"]
    started: float
    """Time at which the engine got the request, as Unix time in seconds."""
    seconds: float
    """Duration of the engine's work, in seconds."""
    parameters: Mapping[str, Any]
    """Sampling parameters, and `NAME` and `GROUP` of the trajectory if the request has them."""
    messages: Sequence[Any]
    """Messages of the prompt after the parent's response."""
    response: Any
    """The response as a message. None if the client requested no message, or rllm did not render one."""
    sent: Mapping[str, Any]
    """The request's parameters as sent by the client, tools included. Stored once for all calls that share them."""
    outcomes: Mapping[str, str]
    """Parameter -> its outcome, such as ``honored``."""
    delivered: bool = False
    """True if the response reached the client. This is only read, not written: a `DeliveryRow` stores it."""

    def __post_init__(self) -> None:
        if self.logprobs.shape != self.response_ids.shape:
            raise ValueError(f"{self.logprobs.size} log-probs for {self.response_ids.size} response tokens")
        check_version_spans(self.version_spans, len(self.response_ids), self.weight_version)

    @property
    def name(self) -> str | None:
        """The trajectory's name in the request. None if the request has none."""
        return self.parameters.get(NAME)

    @property
    def group(self) -> str | None:
        """The trajectory's group in the request. None if the request has none."""
        return self.parameters.get(GROUP)


@dataclass(frozen=True, kw_only=True)
class DeliveryRow:
    """The response of a call reached its client. A second delivery of the same call changes nothing."""

    session: str
    call: str
    """Id of the call."""
    at: float
    """Seconds of Unix time."""


@dataclass(frozen=True, kw_only=True)
class RewardRow:
    """A reward for a role of a session. The role's last reward applies."""

    session: str
    role: str
    value: float
    at: float
    """Time of the reward, as Unix time in seconds."""


@dataclass(frozen=True, kw_only=True)
class EndRow:
    """The end of a session. After it, the session accepts no calls or rewards."""

    session: str
    ending: str
    """``closed`` or ``failed``."""
    at: float
    """Seconds of Unix time."""


Row: TypeAlias = SessionRow | CallRow | DeliveryRow | RewardRow | EndRow


@dataclass(frozen=True, kw_only=True)
class SessionSummary:
    """A session without its calls."""

    session: SessionRow
    calls: int
    """Number of stored calls."""
    end: EndRow | None
    """None if the session has not ended."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredSession:
    """A snapshot of a session with its calls, rewards and end."""

    session: SessionRow
    calls: tuple[CallRow, ...]
    """Calls in the order in which they were stored. A parent comes before its children."""
    rewards: tuple[RewardRow, ...]
    """Rewards in the order in which they were stored."""
    end: EndRow | None
    """None if the session has not ended."""

    def prompt_ids(self, call: str) -> NDArray[np.int32]:
        """Return the (n,) token ids of a call's whole prompt, joined from its ancestors.

        Raises:
            KeyError: the session has no such call.
            StoreError: an ancestor is missing.
        """
        return prompt_ids(self._lineage(call))

    def messages(self, call: str) -> list[Any]:
        """Return the messages of a call's whole prompt, joined from its ancestors. Raises errors as `prompt_ids`."""
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
            raise StoreError(
                "damaged-store",
                f"Session {self.session.id!r} lacks call {parent!r}, which call {call!r} continues.",
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
    """Return the number of tokens in the prompt and the response of the last call of a lineage."""
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
    """Return the messages of the prompt of the last call of a lineage. Responses that are None are skipped."""
    found = list[Any]()
    for row in rows:
        found = [*found[: row.kept_messages], *row.messages]
        if row is not rows[-1] and row.response is not None:
            found.append(row.response)
    return found
