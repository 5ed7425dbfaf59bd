"""An open session: its key, its conversations, and the work on its running requests."""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from rllm_core.contracts.renderer import StreamingRenderer
from rllm_core.data.messages import Message, Tool
from rllm_core.rollout.template_renderer import before_any
from rllm_gateway.calls.rows import CallRow, lineage, messages
from rllm_gateway.exchange import REASONING, Answer, Begun, FinalText, ModelRequest
from rllm_gateway.fields import RefusedError, invalid
from rllm_gateway.link import SOURCES, Ending, SessionSpec, SessionTrace, Transcript, traced_call
from rllm_gateway.structured import ResponseFormat


class ClientGoneError(Exception):
    """The client disconnected."""


LOOKS = 32
"""A choice with n tokens is decoded again after n / 32 more tokens. So the total cost is linear in its length, about
32 times the length, not quadratic."""


class PartialResponse:
    """The choices of a streamed request while they are sampled. Several clients may wait for them."""

    def __init__(self, request: ModelRequest, renderer: StreamingRenderer) -> None:
        self.news = asyncio.Event()
        """Event that is set when there are more tokens. It is then replaced by a new event."""
        self.begun: Begun | None = None
        """None until the prompt is rendered."""
        self._request = request
        self._renderer = renderer
        self._prompt_ids: NDArray[np.int32]
        self._tokens: list[list[int]] = [[] for _ in range(request.n)]

    def begin(self, begun: Begun, prompt_ids: NDArray[np.int32]) -> None:
        """Store the prompt, before the first token is added."""
        self.begun, self._prompt_ids = begun, prompt_ids

    def add(self, index: int, ids: NDArray[np.int32]) -> None:
        """Add the next tokens of a choice, (n,) int32."""
        self._tokens[index] += ids.tolist()
        news, self.news = self.news, asyncio.Event()
        news.set()

    def read_final_text(self, looked: dict[int, int]) -> dict[int, FinalText]:
        """Return the final text of each choice that has grown, by index.

        Args:
            looked: number of tokens of each choice that the caller has seen. It is brought up to date.
        """
        found = dict[int, FinalText]()
        for index, tokens in enumerate(self._tokens):
            seen = looked.get(index, 0)
            if len(tokens) > seen + seen // LOOKS:
                looked[index] = len(tokens)
                found[index] = self._read_final_text(np.array(tokens, np.int32))
        return found

    def _read_final_text(self, ids: NDArray[np.int32]) -> FinalText:
        """Return the final part of the result of `choice_of`."""
        request = self._request
        response = self._renderer.parse_partial(self._prompt_ids, ids, request.tools)
        if request.is_plain:
            return FinalText(content=before_any(response.text, request.stop))
        if response.reasoning:
            return FinalText(reasoning=response.reasoning)
        # JSON that follows a schema can become a tool call in the end, which is not content.
        may_call = request.response_format is not None and request.tools
        return FinalText(content="" if may_call else before_any(response.content, request.stop))


@dataclass(eq=False)
class PendingResponse:
    """The sampling and storing of one request, and the number of clients that wait for it."""

    task: asyncio.Task[Answer]
    waiters: int = 0
    storing: bool = False
    """True if its calls are being stored, so that it cannot be cancelled any more."""
    delivered: bool = False
    partial_response: PartialResponse | None = None
    """The tokens so far. None if clients get the whole answer at the end."""

    @property
    def answer(self) -> Answer | None:
        """The answer. None if the work has not finished, or has failed."""
        return self.task.result() if self.task.done() and not self.failed else None

    @property
    def failed(self) -> bool:
        """True if the work has ended without an answer."""
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)

    def result(self) -> Answer:
        """Return the answer of finished work.

        Raises:
            RefusedError: the session was closed meanwhile, or the request was rejected.
        """
        if self.task.cancelled():
            raise RefusedError(
                409, "conflict", "The session was closed while its model answered.", code="session_closed"
            )
        return self.task.result()

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Count a waiting client. If the last one leaves, cancel sampling, unless the calls are being stored."""
        self.waiters += 1
        try:
            yield
        finally:
            self.waiters -= 1
            if not self.waiters and not self.storing:
                self.task.cancel()

    async def wait(
        self, gone: asyncio.Task[None], within: float | None = None, news: asyncio.Event | None = None
    ) -> bool:
        """Wait for the answer, for `within` seconds, or until `news` is set. Return True if the answer is complete.

        Raises:
            ClientGoneError: the client disconnected before.
        """
        has_news = None if news is None else asyncio.create_task(news.wait())
        try:
            ends = {self.task, gone} if has_news is None else {self.task, gone, has_news}
            done, _ = await asyncio.wait(ends, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if has_news is not None:
                has_news.cancel()
        if gone in done and self.task not in done:
            raise ClientGoneError
        return self.task in done


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


@dataclass(frozen=True, eq=False)
class BranchPoint:
    """The position of a request in a session's conversations."""

    digest: bytes
    """Digest of the prompt."""
    parent: CallRow | None
    """The call that the request continues. None if it continues no call."""
    matched: Mapping[int, CallRow]
    """Index of a message -> the session's call with this response."""
    rest: Sequence[Message]
    """Messages after the parent's response."""
    foreign: int
    """Number of assistant messages that were not sampled in this session, or not at this position."""


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
    """Answered requests and running requests."""
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

    def find_branch_point(self, request: ModelRequest) -> BranchPoint:
        """Find the longest prefix of a request's messages or tokens that ends with a response of this session."""
        if request.prompt_ids is not None:
            digest, parent = self._read_tokens(request.role, request.prompt_ids)
            return BranchPoint(digest, parent, {}, (), 0)
        digest = _root_digest(request.role, request.tools, self.spec.template_options)
        matched, foreign = dict[int, CallRow](), 0
        for at, message in enumerate(request.messages):
            digest = _next_digest(digest, message)
            if message["role"] != "assistant":
                continue
            if (row := self.responses.get(digest)) is None:
                foreign += 1
            else:
                matched[at] = row
        last = max(matched, default=-1)
        return BranchPoint(digest, matched.get(last), matched, request.messages[last + 1 :], foreign)

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

    def add(
        self, row: CallRow, branch_point: BranchPoint, branch: str, request: ModelRequest, prompt_ids: NDArray[np.int32]
    ) -> None:
        """Add a stored call, which later requests may continue. If responses are equal, requests continue the first.

        Args:
            row: the call.
            branch_point: its position.
            branch: its branch.
            request: its request.
            prompt_ids: (n,) tokens of its prompt.
        """
        # Drop the request's parameters, because the store has them, and tools may be large.
        self.calls[row.id] = row = replace(row, sent={})
        self.branches[row.id] = branch
        if self.spec.keeps_messages:
            before = self.tools.get(row.parent or "")
            self.tools[row.id] = request.tools if before is None or before != request.tools else before
        if request.prompt_ids is None:
            self.responses.setdefault(_next_digest(branch_point.digest, row.response), row)
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

    def repeated(self, key: RequestKey, client_retry: int | None) -> PendingResponse | None:
        """Return the work that a request repeats. None if the request needs a new sample.

        Two requests with the same prompt get two samples. But the second request gets the first answer if no client
        received it, or if the client marks the request as a retry.
        """
        usable = [each for each in self.pending[key] if not each.failed]
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
