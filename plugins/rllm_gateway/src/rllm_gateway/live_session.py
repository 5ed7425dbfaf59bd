"""A session while it is open: who may use it, what was sampled in it, and what is under way."""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from rllm_gateway.answer import Answer
from rllm_gateway.growing import Growing
from rllm_gateway.session import Ending, Said, SessionSpec, SessionTrace, TracedCall
from rllm_gateway.structured import Wanted
from rllm_gateway.tree import Node, Tree

UNDELIVERED = "undelivered"
"""Why a call is excluded that no client has seen."""
MOST_COUNTERS = 200
"""Names of parameters come from clients."""
OTHER = "other"


def hash_of(key: str) -> str:
    """What is stored of a key: 64 hexadecimal digits. Keys are random, so that one round is enough."""
    return sha256(key.encode(errors="surrogateescape")).hexdigest()


def is_key(key: str, key_hash: str) -> bool:
    """Takes the same time whatever the key is."""
    return hmac.compare_digest(hash_of(key), key_hash)


RequestKey = tuple[bytes, int, int, tuple[str, ...], Wanted | None]
"""Digest of the prompt, number of choices, maximum number of tokens, stop strings, and form of the reply. A repeated
request has the same key."""


@dataclass(eq=False)
class Work:
    """The sampling and storing of one request, and who waits for it."""

    task: asyncio.Task[Answer]
    waiters: int = 0
    storing: bool = False
    """Whether it is past the point where it can be cancelled."""
    delivered: bool = False
    growing: Growing | None = None
    """Its tokens so far; None: clients get everything at the end."""

    @property
    def answer(self) -> Answer | None:
        """None: it is under way, or came to nothing."""
        return self.task.result() if self.task.done() and not self.failed else None

    @property
    def failed(self) -> bool:
        """Whether it came to nothing."""
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)


@dataclass(frozen=True, kw_only=True)
class StoredCall:
    """What a trace says of a call."""

    id: str
    parent: str | None
    role: str
    name: str | None
    group: str | None
    node: Node


@dataclass(eq=False)
class LiveSession:
    """See `SessionSpec`."""

    spec: SessionSpec
    key_hash: str
    tree: Tree = field(init=False)
    calls: list[StoredCall] = field(default_factory=list)
    delivered: set[str] = field(default_factory=set)
    """Ids of calls."""
    rewards: dict[str, float] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    works: defaultdict[RequestKey, list[Work]] = field(default_factory=lambda: defaultdict(list))
    """Answered requests, and those under way."""
    siblings: Counter[bytes] = field(default_factory=Counter)
    """How many calls there were of each prompt."""
    unused: defaultdict[bytes, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Numbers of calls that came to nothing, by prompt: asked again, it is the same sample."""
    lost: Counter[bytes] = field(default_factory=Counter)
    """How many requests of each prompt came to nothing, and have not been tried again."""
    roles: set[str] = field(default_factory=set)
    """Roles that requested replies, including failed requests."""
    in_flight: int = 0
    sampled: int = 0
    """Calls that were begun and have not come to nothing."""
    requests: int = 0
    """Requests for replies, whatever became of them."""
    too_long: int = 0
    """Requests with more characters than there is room for."""
    calls_used_up: int = 0
    """Requests for which there were no calls left."""
    sealed: bool = False
    ending: Ending = "closed"

    tag: str = field(init=False)
    """Stands for the session in ids of calls, which no other session has."""

    def __post_init__(self) -> None:
        self.tag = sha256(self.spec.id.encode()).hexdigest()[:16]
        self.tree = Tree(self.spec)

    def count(self, name: str, times: int = 1) -> None:
        """Counters of many names are one."""
        if name not in self.counters and len(self.counters) >= MOST_COUNTERS:
            name = OTHER
        self.counters[name] += times

    def take_sibling(self, digest: bytes) -> int:
        """A number for one more call of a prompt."""
        self.sampled += 1
        if unused := self.unused[digest]:
            # The smallest: the choices of a request that is asked again are in the same order.
            unused.remove(least := min(unused))
            return least
        self.siblings[digest] += 1
        return self.siblings[digest] - 1

    def lose(self, digest: bytes, siblings: Sequence[int]) -> None:
        """A request came to nothing."""
        self.sampled -= len(siblings)
        self.unused[digest] += siblings
        self.lost[digest] += 1

    def repeated(self, key: RequestKey, client_retry: int | None) -> Work | None:
        """The work that a request asks for again; None: it asks for a new sample.

        The same prompt twice is two samples. It is one where the client says that it tries again, and where nobody has
        seen the first answer.
        """
        works = [work for work in self.works[key] if not work.failed]
        unseen = [work for work in works if work.task.done() and not work.delivered and not work.waiters]
        if unseen:
            return unseen[0]
        if not client_retry:
            return None
        if self.lost[key[0]]:
            # What is tried again is a request that came to nothing, not one of the same prompt that was answered.
            self.lost[key[0]] -= 1
            return None
        return works[-1] if works else None

    def trace(self) -> SessionTrace:
        """What the trainer gets."""
        calls = [
            TracedCall(
                id=call.id,
                parent=call.parent,
                role=call.role,
                name=call.name,
                group=call.group,
                delivered=call.id in self.delivered,
                excluded=None if call.id in self.delivered else UNDELIVERED,
            )
            for call in self.calls
        ]
        return SessionTrace(
            id=self.spec.id,
            calls=tuple(calls),
            rewards=dict(self.rewards),
            counters=dict(self.counters),
            ending=self.ending,
            requests=self.requests,
            too_long=self.too_long,
            calls_used_up=self.calls_used_up,
            said=self._said(),
        )

    def _said(self) -> Said | None:
        last = next((call.node for call in reversed(self.calls) if call.id in self.delivered), None)
        if last is None or not self.spec.keeps_messages:
            return None
        return Said(messages=last.messages, tools=last.tools)
