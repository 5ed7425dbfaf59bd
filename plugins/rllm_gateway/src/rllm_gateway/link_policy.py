"""The gateway's end of the link to the trainer. The trainer samples responses, and opens and closes sessions."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, OnTokens
from rllm_core.contracts.renderer import Renderer
from rllm_gateway.link_data import FRAMES, MAX_BYTES, completion_of
from rllm_gateway.session import OpenedSession, SessionSpec, SessionTrace
from rllm_serving.connection import Connection, SendPart

Failure = Literal["too_long", "unsupported", "gone", "error"]
"""Reason why a call fails: the prompt is too long, the engine lacks an option, the trainer has stopped, or other."""


class PolicyError(Exception):
    """The policy cannot answer a call. The session continues."""

    def __init__(self, message: str, failure: Failure = "error") -> None:
        super().__init__(message)
        self.failure: Failure = failure


class Policy(Protocol):
    """Samples responses. If `sample` is cancelled, the call is cancelled."""

    async def sample(
        self,
        *,
        session: str,
        call: str,
        branch: str,
        prompt_ids: NDArray[np.int32],
        max_tokens: int,
        stop: tuple[str, ...],
        json_schema: str | None = None,
        top_logprobs: int = 0,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        """Continue a prompt.

        Args:
            session: id of the session, `SessionSpec.id`.
            call: unique id of the call. The trainer keeps its tokens under this id until the session closes.
            branch: id of a branch. It is the same for calls that continue each other and share a cached prefix.
            prompt_ids: (n,) int32 tokens of the prompt.
            max_tokens: maximum number of tokens of the response.
            stop: stop strings, at most a few. The response ends with the tokens that complete one.
            json_schema: JSON schema for the response, as JSON text. None: any text.
            top_logprobs: number of most likely tokens to return at each position.
            on_tokens: see `SamplingParams.on_tokens`.

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
    tokenizer: str | None = None
    """Digest of the tokenizer's vocabulary, which is stored with every session. None: unknown."""


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
        self,
        *,
        session: str,
        call: str,
        branch: str,
        prompt_ids: NDArray[np.int32],
        max_tokens: int,
        stop: tuple[str, ...],
        json_schema: str | None = None,
        top_logprobs: int = 0,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        """See `Policy.sample`."""
        request = {
            "op": "sample",
            "session": session,
            "call": call,
            "branch": branch,
            "prompt_ids": np.asarray(prompt_ids, np.int32),
            "max_tokens": max_tokens,
            "stop": list(stop),
            "json_schema": json_schema,
            "top_logprobs": top_logprobs,
            "partial": on_tokens is not None,
        }
        on_part = None if on_tokens is None else lambda part: on_tokens(part["token_ids"])
        try:
            answer = await self._trainer.ask(request, on_part=on_part)
        except EOFError:
            raise PolicyError("the trainer has gone", "gone") from None
        if "failure" in answer:
            raise PolicyError(answer["message"], answer["failure"])
        return completion_of(answer)

    def end_session(self, session: str) -> None:
        """Notify the trainer of the end of a session that the gateway itself opened."""
        self._trainer.tell({"op": "ended", "session": session})

    async def serve(self) -> None:
        """Answer until the trainer hangs up."""
        try:
            await self._trainer.wait_ended()
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
        return {"trace": asdict(await asyncio.shield(closing))}
