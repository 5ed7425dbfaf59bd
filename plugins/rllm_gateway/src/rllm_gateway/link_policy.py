"""The gateway's end of the link: the policy that it samples from, and the sessions that the trainer opens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from itertools import count
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, OnTokens
from rllm_gateway.frames import Frame, encoded, read_frame
from rllm_gateway.link_data import completion_of, trace_as_json
from rllm_gateway.policy import PolicyError, PolicyGoneError, PromptTooLongError, UnsupportedError
from rllm_gateway.session import OpenedSession, SessionSpec, SessionTrace

FAILURES: dict[str, type[PolicyError]] = {
    "too_long": PromptTooLongError,
    "unsupported": UnsupportedError,
    "gone": PolicyGoneError,
    "error": PolicyError,
}


class SessionKeeper(Protocol):
    """What the gateway does with sessions."""

    async def open_session(self, spec: SessionSpec) -> OpenedSession: ...
    async def close_session(self, session: str) -> SessionTrace: ...


class LinkPolicy:
    """A `Policy` on the other side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._sampling: dict[int, asyncio.Future[Completion]] = {}
        self._on_tokens: dict[int, OnTokens] = {}
        self._numbers = count()
        self._answering: set[asyncio.Task[None]] = set()
        self._gone = False

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
        if self._gone:
            raise PolicyGoneError("the trainer has gone")
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        # An id may be asked again while what was sampled for it before is on its way.
        number = next(self._numbers)
        self._sampling[number] = future
        if on_tokens is not None:
            self._on_tokens[number] = on_tokens
        asked = {
            "op": "sample",
            "number": number,
            "session": session,
            "call": call,
            "branch": branch,
            "max_tokens": max_tokens,
            "stop": list(stop),
            "json_schema": json_schema,
            "top_logprobs": top_logprobs,
            "partial": on_tokens is not None,
        }
        self._send(Frame(asked, prompt_ids))
        try:
            return await future
        except asyncio.CancelledError:
            self._send(Frame({"op": "cancel", "number": number}))
            raise
        finally:
            del self._sampling[number]
            self._on_tokens.pop(number, None)

    def end_session(self, session: str) -> None:
        """Say that a session which the gateway itself opened has ended."""
        self._send(Frame({"op": "ended", "session": session}))

    async def serve(self, keeper: SessionKeeper) -> None:
        """Do what the trainer asks for, until it hangs up."""
        try:
            while True:
                self._handle(await read_frame(self._reader), keeper)
        except EOFError:
            self._fail()
        finally:
            for task in self._answering:
                task.cancel()

    def _handle(self, frame: Frame, keeper: SessionKeeper) -> None:
        body = frame.body
        match body["op"]:
            case "sampled" | "failed":
                future = self._sampling.get(body["number"])
                if future is not None and not future.done():
                    _settle(future, frame)
            case "tokens" if body["number"] in self._on_tokens:
                self._on_tokens[body["number"]](frame.ids)
            case "open":
                self._answer(body, lambda: _opened(keeper, body["spec"]))
            case "close":
                self._answer(body, lambda: _closed(keeper, body["session"]))

    def _answer(self, body: Any, work: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        async def answer() -> None:
            try:
                said = await work()
            except Exception as error:  # noqa: BLE001  (the trainer is told, whatever it is)
                said = {"error": f"{type(error).__name__}: {error}"}
            self._send(Frame({"op": "answer", "number": body["number"], **said}))

        task = asyncio.create_task(answer())
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def _send(self, frame: Frame) -> None:
        if not self._gone:
            self._writer.write(encoded(frame))

    def _fail(self) -> None:
        self._gone = True
        for future in self._sampling.values():
            if not future.done():
                future.set_exception(PolicyGoneError("the trainer has gone"))
        with contextlib.suppress(ConnectionError):
            self._writer.close()


def _settle(future: asyncio.Future[Completion], frame: Frame) -> None:
    if frame.body["op"] == "sampled":
        future.set_result(completion_of(frame))
    else:
        future.set_exception(FAILURES[frame.body["kind"]](frame.body["text"]))


async def _opened(keeper: SessionKeeper, spec: dict[str, Any]) -> dict[str, Any]:
    return {"opened": asdict(await keeper.open_session(SessionSpec(**spec)))}


async def _closed(keeper: SessionKeeper, session: str) -> dict[str, Any]:
    return {"trace": trace_as_json(await keeper.close_session(session))}
