"""A session while it is open: who may use it, its conversations, and the requests under way."""

from __future__ import annotations

import hmac
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256
from typing import Any

import orjson

from rllm_core.data.messages import Message, Tool
from rllm_gateway.calls.rows import CallRow, lineage, messages
from rllm_gateway.exchange import REASONING, Asked
from rllm_gateway.refusals import invalid
from rllm_gateway.session import Ending, Said, SessionSpec, SessionTrace, traced_call
from rllm_gateway.structured import Wanted
from rllm_gateway.work import Work

MOST_COUNTERS = 200
"""Names of parameters come from clients."""
OTHER = "other"
CHARACTERS_OF_A_TOKEN = 64
"""More than a token of any text has on average; text has about 4."""
DIGEST_SIZE = 16


def hash_of(key: str) -> str:
    """What is stored of a key: 64 hexadecimal digits. Keys are random, so that one round is enough."""
    return sha256(key.encode(errors="surrogateescape")).hexdigest()


def is_key(key: str, key_hash: str) -> bool:
    """Takes the same time whatever the key is."""
    return hmac.compare_digest(hash_of(key), key_hash)


RequestKey = tuple[bytes, int, int, tuple[str, ...], Wanted | None]
"""Digest of the prompt, number of choices, maximum number of tokens, stop strings, and form of the reply. A repeated
request has the same key."""


@dataclass(frozen=True, eq=False)
class Place:
    """Where a request belongs in a session's conversations."""

    digest: bytes
    """Of its prompt."""
    parent: CallRow | None
    """The call that it continues; None: it continues none."""
    matched: Mapping[int, CallRow]
    """The messages that are replies of this session, by their index."""
    rest: Sequence[Message]
    """Messages after the parent's reply."""
    foreign: int
    """Messages of the assistant that were not sampled here, or not at this place."""


@dataclass(eq=False)
class LiveSession:
    """See `SessionSpec`."""

    spec: SessionSpec
    key_hash: str
    calls: dict[str, CallRow] = field(default_factory=dict)
    """By id, in the order in which they were stored. The store has what clients sent with them (`CallRow.sent`)."""
    responses: dict[bytes, CallRow] = field(default_factory=dict)
    """By the digest of the conversation that ends with the reply."""
    tools: dict[str, Sequence[Tool]] = field(default_factory=dict)
    """By call, the tools that the model was offered, if the session keeps messages."""
    branches: dict[str, str] = field(default_factory=dict)
    """By call, the engine's session."""
    continued: set[str] = field(default_factory=set)
    """Calls that a call of the same branch follows."""
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

    def place(self, asked: Asked) -> Place:
        """Find the longest beginning of a request that ends with a reply of this session."""
        digest = _root_digest(asked.role, asked.tools, self.spec.template_options)
        matched, foreign = dict[int, CallRow](), 0
        for at, message in enumerate(asked.messages):
            digest = _next_digest(digest, message)
            if message["role"] != "assistant":
                continue
            if (row := self.responses.get(digest)) is None:
                foreign += 1
            else:
                matched[at] = row
        last = max(matched, default=-1)
        return Place(digest, matched.get(last), matched, asked.messages[last + 1 :], foreign)

    def add(self, row: CallRow, place: Place, branch: str, tools: Sequence[Tool]) -> None:
        """Add a stored call, which later requests may continue. Of equal replies, the first is continued."""
        # Without what the client sent: the store has it, and tools may be large.
        self.calls[row.id] = row = replace(row, sent={})
        self.branches[row.id] = branch
        if self.spec.keeps_messages:
            before = self.tools.get(row.parent or "")
            self.tools[row.id] = tools if before is None or before != tools else before
        self.responses.setdefault(_next_digest(place.digest, row.response), row)

    def lineage(self, row: CallRow) -> list[CallRow]:
        """The calls from the first that a call continues, to the call itself."""
        return lineage(row, self.calls)

    def refuse_too_long(self, asked: Asked) -> None:
        """Raise RefusedError for a prompt that has more tokens than the session takes, whatever they are."""
        most = self.spec.max_prompt_length
        if most is not None and asked.characters > most * CHARACTERS_OF_A_TOKEN:
            self.too_long += 1
            raise invalid(
                f"a prompt of {asked.characters} characters; this run takes {most} tokens at most",
                "messages",
                "context_length_exceeded",
            )

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
        return SessionTrace(
            id=self.spec.id,
            calls=tuple(traced_call(row, row.id in self.delivered) for row in self.calls.values()),
            rewards=dict(self.rewards),
            counters=dict(self.counters),
            ending=self.ending,
            requests=self.requests,
            too_long=self.too_long,
            calls_used_up=self.calls_used_up,
            said=self._said(),
        )

    def _said(self) -> Said | None:
        last = next((row for row in reversed(self.calls.values()) if row.id in self.delivered), None)
        if last is None or not self.spec.keeps_messages:
            return None
        return Said(messages=[*messages(self.lineage(last)), last.response], tools=self.tools[last.id])


def _root_digest(role: str, tools: Sequence[Tool], template_options: Mapping[str, Any]) -> bytes:
    """Return the digest of what comes before the first message."""
    said = orjson.dumps([role, tools, template_options], option=orjson.OPT_SORT_KEYS)
    return blake2b(said, digest_size=DIGEST_SIZE).digest()


def _next_digest(before: bytes, message: Message) -> bytes:
    """Return the digest of a conversation with one more message. By it, a repeated conversation is recognised."""
    return blake2b(before + _canonical(message), digest_size=DIGEST_SIZE).digest()


def _canonical(message: Message) -> bytes:
    """The same for messages that mean the same: arguments of tools as objects, keys in order, no thoughts."""
    if "tool_calls" in message or REASONING in message:
        said = {key: value for key, value in message.items() if key not in (REASONING, "tool_calls")}
        # The reader of a request and the parser of a reply have seen to it that arguments are JSON.
        calls = [
            [call["id"], call["function"]["name"], orjson.loads(call["function"]["arguments"])]
            for call in message.get("tool_calls") or ()
        ]
        message = {**said, "tool_calls": calls} if calls else said
    return orjson.dumps(message, option=orjson.OPT_SORT_KEYS)
