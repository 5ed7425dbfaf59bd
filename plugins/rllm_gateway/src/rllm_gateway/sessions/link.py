"""The link between trainer and gateway: the data that both send, and the gateway's end.

The trainer opens and closes sessions, and samples responses. The gateway's process serves foreign code, so the frames
of the link are data: a JSON object, and arrays under some of its keys. They are never unpickled.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, SamplingParams, TopTokens
from rllm_core.contracts.renderer import Renderer
from rllm_core.data.messages import Message, Tool
from rllm_core.data.version_spans import VersionSpan
from rllm_gateway.calls.rows import CallRow
from rllm_gateway.client import DEFAULT_ROLE
from rllm_serving.connection import Connection, Encoding, SendPart

Ending = Literal["closed", "failed"]
"""``failed``: a call could not be stored, so the trace is incomplete."""
TASK, LABEL, TEMPERATURE = "task", "label", "temperature"
"""Keys of a stored session's metadata."""
RewardSource = Literal["agent", "program", "tests", "rllm.reward", "environment"]
"""Source of a rollout's reward. ``agent``: the agent reports it."""
SOURCES: Mapping[RewardSource, str] = {
    "program": "neither --reward nor the program (rllm.workflow.workflow_args.reports_reward=true uses its reward)",
    "agent": "a report with the reward key",
    "tests": "the task's tests",
    "rllm.reward": "rllm.reward (--reward)",
    "environment": "the environment",
}
"""Sources as errors and warnings describe them."""
VALIDATION = "val"
"""The `LABEL` of validation sessions, which are not used for training."""


@dataclass(frozen=True, kw_only=True)
class SessionSpec:
    """The data with which a trainer opens a session. All of it is JSON data."""

    id: str
    """Uid of the rollout and its retry. It is part of URLs: letters, digits, ``-``, ``_``, ``.``, ``~`` and ``:``."""
    run: str
    """Name of the run."""
    rollout: str
    """Uid of the rollout."""
    retry: int = 0
    """Number of the rollout's try, from 0."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the task."""
    label: Literal["train", "val"] = "train"
    max_tokens: int
    """Maximum number of tokens of one response."""
    max_prompt_length: int | None = None
    """Maximum number of tokens of a prompt. A prompt with far more characters is rejected before it is rendered. None:
    no limit."""
    max_calls: int = 1000
    """Maximum number of sampled responses. Later calls are rejected."""
    temperature: float = 1.0
    """Sampling temperature. It is stored, because the log-probs depend on it."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the renderer. Conversations with different options share no prefix."""
    accumulate_reasoning: bool = False
    """Value of ``rllm.accumulate_reasoning``."""
    group_key: str | None = None
    """Key of a request's ``metadata``. Calls with different values form separate trajectories
    (``rllm.sdk.processing.groupby_key``)."""
    name_key: str | None = None
    """Key of a request's ``metadata`` with the trajectory's name (``rllm.sdk.processing.traj_name_key``)."""
    unsupported: Literal["refuse", "ignore"] = "refuse"
    """Treatment of unsupported request parameters. ``refuse``: HTTP 400. ``ignore``: counted as ignored."""
    keeps_messages: bool = False
    """True if the trace contains the last conversation, which rewards read."""
    reward_source: RewardSource = "environment"
    """Source of the rollout's reward. The gateway rejects reported rewards unless it is ``agent``."""


@dataclass(frozen=True, kw_only=True)
class OpenedSession:
    """URL and key with which an agent uses its session."""

    id: str
    key: str
    """API key for the agent's clients. Only its hash is stored."""
    url: str
    """URL of the session, such as ``http://127.0.0.1:4000/s/<id>``."""
    reward_key: str = field(default="", repr=False)
    """Key with which the agent reports its reward. Empty if the reward comes from a different source."""

    def openai_url(self, role: str = DEFAULT_ROLE) -> str:
        """Return the ``OPENAI_BASE_URL`` of the agent in this role."""
        return f"{self.url}/{role}/v1"

    def anthropic_url(self, role: str = DEFAULT_ROLE) -> str:
        """Return the ``ANTHROPIC_BASE_URL`` of the agent in this role. It is also its ``GOOGLE_GEMINI_BASE_URL``."""
        return f"{self.url}/{role}"


@dataclass(frozen=True, kw_only=True)
class TracedCall:
    """One response of the model. The trainer has its tokens, under the same id."""

    id: str
    parent: str | None
    """Id of the call whose prompt and response are the start of this prompt, token for token. None: no such call."""
    role: str
    name: str | None
    """The request's metadata value under `SessionSpec.name_key`. None: the request has none."""
    group: str | None
    """The request's metadata value under `SessionSpec.group_key`. None: the request has none."""
    delivered: bool
    """True if the client received the answer. Otherwise the call is not used for training."""


def traced_call(row: CallRow, delivered: bool) -> TracedCall:
    """Return the trace entry of a stored call."""
    return TracedCall(id=row.id, parent=row.parent, role=row.role, name=row.name, group=row.group, delivered=delivered)


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """A conversation that ends with a response of the model."""

    messages: Sequence[Message]
    """All messages. Responses of this session are the sampled ones."""
    tools: Sequence[Tool] = ()
    """Tools of the last call."""


@dataclass(frozen=True, kw_only=True)
class SessionTrace:
    """The result of a session: its calls, rewards and counters."""

    id: str
    calls: tuple[TracedCall, ...]
    """Calls in the order in which they were stored. A parent comes before the calls that continue it."""
    rewards: Mapping[str, float]
    """Role -> last reward. Roles without a reward are missing."""
    counters: Mapping[str, int]
    """Event -> count: ``ignored/<parameter>``, ``overruled/<parameter>``, ``branches``, ``retries``, ``cancelled``."""
    ending: Ending
    requests: int = 0
    """Number of requests for a response with the session's key, including rejected ones."""
    too_long: int = 0
    """Number of requests that were rejected before they were rendered, because they have too many characters."""
    calls_used_up: int = 0
    """Number of requests that were rejected, because they would have exceeded `SessionSpec.max_calls`."""
    rejected_rewards: int = 0
    """Number of reported rewards that were rejected, because the session has a different `RewardSource`, or because
    the reward key was missing."""
    transcript: Transcript | None = None
    """Conversation of the last delivered call. None if no call was delivered or `SessionSpec.keeps_messages` is off."""


SIZE = 4
"""Number of bytes that contain the length of the JSON object."""
MAX_BYTES = 1 << 29
"""Maximum size of a frame."""
ARRAYS = "arrays"
"""Key of the names, dtypes and shapes of the arrays, which follow the JSON object in this order."""
DTYPES = ("<i4", "<f4")


def _dump(body: Mapping[str, Any]) -> bytes:
    arrays = {name: value for name, value in body.items() if isinstance(value, np.ndarray)}
    values = {name: value for name, value in body.items() if name not in arrays}
    head = orjson.dumps({**values, ARRAYS: [[name, each.dtype.str, each.shape] for name, each in arrays.items()]})
    return len(head).to_bytes(SIZE, "little") + head + b"".join(each.tobytes() for each in arrays.values())


def _load(data: bytes) -> dict[str, Any]:
    start = SIZE + int.from_bytes(data[:SIZE], "little")
    try:
        body: dict[str, Any] = orjson.loads(data[SIZE:start])
        for name, dtype, shape in body.pop(ARRAYS):
            end = start + 4 * math.prod(shape)
            body[name] = np.frombuffer(data[start:end], DTYPES[DTYPES.index(dtype)]).reshape(shape)
            start = end
        return body
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("the bytes are not a frame") from error


FRAMES = Encoding(_dump, _load)


def trace_as_json(trace: SessionTrace) -> dict[str, Any]:
    """Return the fields of a trace, under their names on the wire."""
    data = asdict(trace)
    data["said"] = data.pop("transcript")
    return data


def trace_of(data: dict[str, Any]) -> SessionTrace:
    """Return the trace that has these fields."""
    calls = tuple(TracedCall(**call) for call in data["calls"])
    said = data.pop("said")
    return SessionTrace(**{**data, "calls": calls, "transcript": None if said is None else Transcript(**said)})


def completion_as_json(completion: Completion) -> dict[str, Any]:
    """Return the fields of a completion."""
    top = completion.top
    return {
        "finish_reason": completion.finish_reason,
        "weight_version": completion.weight_version,
        "version_spans": [list(span) for span in completion.version_spans],
        "token_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        **({} if top is None else {"top_ids": top.ids, "top_logprobs": top.logprobs}),
    }


def completion_of(data: Mapping[str, Any]) -> Completion:
    """Return the completion that has these fields."""
    return Completion(
        token_ids=data["token_ids"],
        logprobs=data["logprobs"],
        finish_reason=data["finish_reason"],
        weight_version=data["weight_version"],
        version_spans=tuple(VersionSpan(*span) for span in data["version_spans"]),
        top=TopTokens(data["top_ids"], data["top_logprobs"]) if "top_ids" in data else None,
    )


Failure = Literal["too_long", "unknown_token", "unsupported", "gone", "error"]
"""Reason why a call fails: the prompt is too long or has tokens of a different model, the engine lacks an option, the
trainer has stopped, or other."""


class PolicyError(Exception):
    """The policy cannot answer a call. The session continues."""

    def __init__(self, message: str, failure: Failure = "error") -> None:
        super().__init__(message)
        self.failure: Failure = failure


OPTIONS = ("max_tokens", "stop", "json_schema", "top_logprobs")
"""Fields of `SamplingParams` that a gateway sets. The run sets the others."""


class Policy(Protocol):
    """Samples responses. If `sample` is cancelled, the call is cancelled."""

    async def sample(
        self, prompt_ids: NDArray[np.int32], sampling: SamplingParams, *, session: str, call: str, branch: str
    ) -> Completion:
        """Sample the response to a prompt.

        Args:
            prompt_ids: (n,) tokens of the prompt.
            sampling: limits and form of the response, the fields in `OPTIONS`, and its `SamplingParams.on_tokens`.
            session: id of the session, `SessionSpec.id`.
            call: unique id of the call. The trainer keeps its tokens under this id until the session closes.
            branch: id of a branch. It is the same for calls that continue each other and share a cached prefix.

        Raises:
            PolicyError: the call cannot be answered.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class AttachedPolicy:
    """A policy that answers calls, and the renderer of its model."""

    policy: Policy
    renderer: Renderer
    model: str
    """Name of the model, for clients that list models."""


class SessionKeeper(Protocol):
    """Opens and closes sessions."""

    async def open_session(self, spec: SessionSpec) -> OpenedSession: ...
    async def close_session(self, session: str) -> SessionTrace: ...


class LinkPolicy:
    """A `Policy` on the other side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keeper: SessionKeeper) -> None:
        """Start to answer the trainer's requests, which open and close sessions of `keeper`."""
        self._keeper = keeper
        self._closing: set[asyncio.Task[SessionTrace]] = set()
        self._trainer = Connection(reader, writer, FRAMES, self._handle, MAX_BYTES)

    async def sample(
        self, prompt_ids: NDArray[np.int32], sampling: SamplingParams, *, session: str, call: str, branch: str
    ) -> Completion:
        """See `Policy.sample`."""
        on_tokens = sampling.on_tokens
        options = {name: getattr(sampling, name) for name in OPTIONS}
        ids = {"session": session, "call": call, "branch": branch}
        body = {"partial": on_tokens is not None, **ids, "prompt_ids": prompt_ids, **options}
        on_part = None if on_tokens is None else lambda part: on_tokens(part["token_ids"])
        try:
            answer = await self._trainer.ask(body, on_part=on_part)
        except EOFError:
            raise PolicyError("the trainer has gone", "gone") from None
        if "failure" in answer:
            raise PolicyError(answer["message"], answer["failure"])
        return completion_of(answer)

    async def serve(self) -> None:
        """Answer until the trainer hangs up."""
        try:
            await self._trainer.wait_until_end()
        finally:
            await self._trainer.close()

    async def _handle(self, body: Any, _: SendPart) -> dict[str, Any]:
        try:
            return await self._answer(body)
        except Exception as error:  # noqa: BLE001  (the trainer reports it)
            return {"error": f"{type(error).__name__}: {error}"}

    async def _answer(self, body: Any) -> dict[str, Any]:
        if body["op"] == "open":
            return {"opened": asdict(await self._keeper.open_session(SessionSpec(**body["spec"])))}
        closing = asyncio.ensure_future(self._keeper.close_session(body["session"]))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        # Protect the task from cancellation, because a session must not be closed only in part.
        return {"trace": trace_as_json(await asyncio.shield(closing))}
