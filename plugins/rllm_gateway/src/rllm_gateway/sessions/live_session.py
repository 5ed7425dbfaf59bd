"""An open session: its key, its conversations and its responses."""

from __future__ import annotations

import hmac
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from rllm_core.data.messages import Message, Tool
from rllm_gateway.apis.exchange import REASONING, ModelRequest, PendingResponse
from rllm_gateway.apis.fields import RefusedError, invalid
from rllm_gateway.apis.structured import ResponseFormat
from rllm_gateway.calls.rows import CallRow, lineage, messages
from rllm_gateway.sessions.link import SOURCES, Ending, SessionSpec, SessionTrace, Transcript, traced_call

MOST_COUNTERS = 200
"""Maximum number of counters. There is a limit because the names of parameters come from clients."""
OTHER = "other"
CHARACTERS_OF_A_TOKEN = 64
"""Upper bound of the average number of characters per token of a prompt. Typical text has about 4."""
DIGEST_SIZE = 16


def hash_of(key: str) -> str:
    """Return the hash of a key that is stored, 64 hexadecimal digits. One hash is enough, because keys are random."""
    return sha256(key.encode(errors="surrogateescape")).hexdigest()


def is_key(key: str, key_hash: str) -> bool:
    """True if a key has this hash. The comparison takes constant time."""
    return hmac.compare_digest(hash_of(key), key_hash)


RequestKey = tuple[bytes, int, int, tuple[str, ...], ResponseFormat | None]
"""Digest of the prompt, number of choices, maximum number of tokens, stop strings, and form of the response. A repeated
request has the same key."""


@dataclass(eq=False)
class LiveSession:
    """The state of an open session. See `SessionSpec`."""

    spec: SessionSpec
    key_hash: str
    reward_key_hash: str | None = None
    """Hash of the reward key. None if the agent does not report its reward."""
    calls: dict[str, CallRow] = field(default_factory=dict)
    """Call id -> call, in the order in which they were stored. `CallRow.sent` is empty here. Only the store has it."""
    responses: dict[bytes, CallRow] = field(default_factory=dict)
    """Digest of a conversation that ends with a response -> call of that response."""
    ends: dict[bytes, CallRow] = field(default_factory=dict)
    """Digest of the tokens of a call's prompt and response -> the call."""
    lengths: set[int] = field(default_factory=set)
    """Numbers of tokens of these prompts and responses."""
    tools: dict[str, Sequence[Tool]] = field(default_factory=dict)
    """Call id -> tools in its prompt. Empty unless the session keeps messages."""
    branches: dict[str, str] = field(default_factory=dict)
    """Call id -> session of the engine."""
    continued: set[str] = field(default_factory=set)
    """Ids of calls that a call of the same branch continues."""
    delivered: set[str] = field(default_factory=set)
    """Ids of calls whose response reached the client."""
    rewards: dict[str, float] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    pending: defaultdict[RequestKey, list[PendingResponse]] = field(default_factory=lambda: defaultdict(list))
    """Responses of answered requests and of running requests."""
    siblings: Counter[bytes] = field(default_factory=Counter)
    """Digest of a prompt -> number of its calls."""
    unused: defaultdict[bytes, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Digest of a prompt -> sibling numbers of failed calls. A retry uses such a number, so it gets the same sample."""
    lost: Counter[bytes] = field(default_factory=Counter)
    """Digest of a prompt -> number of failed requests that were not retried yet."""
    roles: set[str] = field(default_factory=set)
    """Roles that requested responses, including failed requests."""
    in_flight: int = 0
    sampled: int = 0
    """Number of calls that are running or were answered."""
    requests: int = 0
    """Number of requests for responses, including failed requests."""
    too_long: int = 0
    """Number of requests that were rejected because they have too many characters."""
    calls_used_up: int = 0
    """Number of requests that were rejected because of the call limit."""
    rejected_rewards: int = 0
    """Number of reported rewards that were rejected."""
    sealed: bool = False
    ending: Ending = "closed"

    tag: str = field(init=False)
    """Digest of the session id. It makes ids of calls unique over all sessions."""

    def __post_init__(self) -> None:
        self.tag = sha256(self.spec.id.encode()).hexdigest()[:16]

    def locate(self, request: ModelRequest) -> ModelRequest:
        """Find the longest prefix of a request's messages or tokens that ends with a response of this session.

        Returns:
            The request with its position in the session's conversations.
        """
        if request.prompt_ids is not None:
            digest, parent = self._read_tokens(request.role, request.prompt_ids)
            return replace(request, digest=digest, parent=parent)
        digest = _root_digest(request.role, request.tools, self.spec.template_options)
        sampled, foreign = dict[int, CallRow](), 0
        for at, message in enumerate(request.messages):
            digest = _next_digest(digest, message)
            if message["role"] != "assistant":
                continue
            if (row := self.responses.get(digest)) is None:
                foreign += 1
            else:
                sampled[at] = row
        last = max(sampled, default=-1)
        return replace(
            request,
            digest=digest,
            parent=sampled.get(last),
            sampled=sampled,
            new_messages=request.messages[last + 1 :],
            foreign=foreign,
        )

    def _read_tokens(self, role: str, ids: NDArray[np.int32]) -> tuple[bytes, CallRow | None]:
        """Return the digest of tokens, and the call with the longest prompt and response at their start."""
        root = _root_digest(role, (), self.spec.template_options)
        # The person keeps these digests apart from digests of messages.
        chain, parent, at = blake2b(root, digest_size=DIGEST_SIZE, person=b"tokens"), None, 0
        for end in sorted(length for length in self.lengths if length <= len(ids)):
            chain.update(ids[at:end].tobytes())
            parent, at = self.ends.get(chain.digest(), parent), end
        chain.update(ids[at:].tobytes())
        return chain.digest(), parent

    def add(self, row: CallRow, request: ModelRequest, branch: str, prompt_ids: NDArray[np.int32]) -> None:
        """Add a stored call, which later requests may continue. If responses are equal, requests continue the first.

        Args:
            row: the call.
            request: its request, from `locate`.
            branch: its branch.
            prompt_ids: (n,) tokens of its prompt.
        """
        # Drop the request's parameters, because the store has them, and tools may be large.
        self.calls[row.id] = row = replace(row, sent={})
        self.branches[row.id] = branch
        if self.spec.keeps_messages:
            before = self.tools.get(row.parent or "")
            self.tools[row.id] = request.tools if before is None or before != request.tools else before
        if request.prompt_ids is None:
            self.responses.setdefault(_next_digest(request.digest, row.response), row)
        whole = np.concatenate((prompt_ids, row.response_ids)).astype(np.int32)
        self.ends.setdefault(self._read_tokens(row.role, whole)[0], row)
        self.lengths.add(len(whole))

    def lineage(self, row: CallRow) -> list[CallRow]:
        """Return the calls from the first ancestor of a call to the call itself."""
        return lineage(row, self.calls)

    def refuse_too_long(self, request: ModelRequest) -> None:
        """Raise RefusedError if a prompt has so many characters that it must exceed the session's prompt limit."""
        most = self.spec.max_prompt_length
        if most is not None and request.characters > most * CHARACTERS_OF_A_TOKEN:
            self.too_long += 1
            raise invalid(
                f"a prompt of {request.characters} characters; this run takes {most} tokens at most",
                request.prompt_parameter,
                "context_length_exceeded",
            )

    def refuse_reward(self, reward_key: str) -> None:
        """Raise RefusedError if a reported reward does not count, because its source or its key is wrong."""
        source = self.spec.reward_source
        if self.reward_key_hash is not None and is_key(reward_key, self.reward_key_hash):
            return
        self.rejected_rewards += 1
        if source != "agent":
            raise RefusedError(
                403,
                "permission",
                f"The reward of this rollout comes from {SOURCES[source]}, so the reported reward has no effect. "
                "Remove the report.",
                code="reward_not_reported",
            )
        raise RefusedError(
            403,
            "permission",
            "The reward key is missing or wrong. A function has it in its session. A program prints its reward, or "
            "needs rllm.workflow.workflow_args.reports_reward=true.",
            code="reward_key_missing",
        )

    def count(self, name: str, times: int = 1) -> None:
        """Increase a counter. If there are too many counters, increase the counter `OTHER` instead."""
        if name not in self.counters and len(self.counters) >= MOST_COUNTERS:
            name = OTHER
        self.counters[name] += times

    def take_sibling(self, digest: bytes) -> int:
        """Return the sibling number for one more call of a prompt."""
        self.sampled += 1
        if unused := self.unused[digest]:
            # Use the smallest number, so that the choices of a retried request have the same order.
            unused.remove(least := min(unused))
            return least
        self.siblings[digest] += 1
        return self.siblings[digest] - 1

    def lose(self, digest: bytes, siblings: Sequence[int]) -> None:
        """Record that a request failed, so that its sibling numbers can be used again."""
        self.sampled -= len(siblings)
        self.unused[digest] += siblings
        self.lost[digest] += 1

    def find_repeat(self, key: RequestKey, client_retry: int | None) -> PendingResponse | None:
        """Return the response of the request that a request repeats. None if the request needs a new sample.

        Two requests with the same prompt get two samples. But the second request gets the first answer if no client
        received it, or if the client marks the request as a retry.
        """
        usable = [each for each in self.pending[key] if not each.is_failed]
        unseen = [each for each in usable if each.task.done() and not each.delivered and not each.waiters]
        if unseen:
            return unseen[0]
        if not client_retry:
            return None
        if self.lost[key[0]]:
            # This is the retry of a failed request, not of an answered request with the same prompt.
            self.lost[key[0]] -= 1
            return None
        return usable[-1] if usable else None

    def trace(self) -> SessionTrace:
        """Return the trace of the session for the trainer."""
        return SessionTrace(
            id=self.spec.id,
            calls=tuple(traced_call(row, row.id in self.delivered) for row in self.calls.values()),
            rewards=dict(self.rewards),
            counters=dict(self.counters),
            ending=self.ending,
            requests=self.requests,
            too_long=self.too_long,
            calls_used_up=self.calls_used_up,
            rejected_rewards=self.rejected_rewards,
            transcript=self._read_transcript(),
        )

    def _read_transcript(self) -> Transcript | None:
        last = next((row for row in reversed(self.calls.values()) if row.id in self.delivered), None)
        if last is None or not self.spec.keeps_messages:
            return None
        return Transcript(messages=[*messages(self.lineage(last)), last.response], tools=self.tools[last.id])


def _root_digest(role: str, tools: Sequence[Tool], template_options: Mapping[str, Any]) -> bytes:
    """Return the digest of the role, the tools and the options of the template, which come before the first message."""
    before = orjson.dumps([role, tools, template_options], option=orjson.OPT_SORT_KEYS)
    return blake2b(before, digest_size=DIGEST_SIZE).digest()


def _next_digest(before: bytes, message: Message) -> bytes:
    """Return the digest of a conversation with one more message. By it, a repeated conversation is recognized."""
    return blake2b(before + _canonical(message), digest_size=DIGEST_SIZE).digest()


def _canonical(message: Message) -> bytes:
    """Return the same bytes for equivalent messages: tool arguments as objects, sorted keys, and no reasoning."""
    if "tool_calls" in message or REASONING in message:
        rest = {key: value for key, value in message.items() if key not in (REASONING, "tool_calls")}
        # The code that reads requests and parses responses has already checked that arguments are JSON.
        calls = [
            [call["id"], call["function"]["name"], orjson.loads(call["function"]["arguments"])]
            for call in message.get("tool_calls") or ()
        ]
        message = {**rest, "tool_calls": calls} if calls else rest
    return orjson.dumps(message, option=orjson.OPT_SORT_KEYS)
