"""The trainer's end of the link: opens and closes sessions, and samples what their agents ask for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from itertools import count
from typing import Any, TypeVar

from rllm_core.contracts.engine import OnTokens
from rllm_core.errors import BackendError, RllmError, UnsupportedSamplingError, described
from rllm_gateway.frames import Frame, encoded, read_frame
from rllm_gateway.link_data import completion_frame, trace_of
from rllm_gateway.policy import PromptTooLongError
from rllm_gateway.rollout_sampler import RolloutSampler
from rllm_gateway.session import OpenedSession, SessionSpec, SessionTrace

T = TypeVar("T")
SECONDS_TO_ANSWER = 60.0
"""Opening and closing a session takes milliseconds; a gateway that takes longer is stuck."""


class TrainerLink:
    """The one that reads from and writes to the gateway's socket."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        sampler_of: Callable[[str], RolloutSampler] | None = None,
        last_words: Callable[[], str] = str,
    ) -> None:
        """Must be made in a running event loop.

        Args:
            reader: of the gateway's socket.
            writer: of the same.
            sampler_of: makes the sampler of a session that the gateway has opened; None: it opens none.
            last_words: the end of the gateway's log, for the error when it has ended.
        """
        self._writer = writer
        self._last_words = last_words
        self._sampler_of = sampler_of
        self._closing: set[asyncio.Task[None]] = set()
        self._samplers: dict[str, RolloutSampler] = {}
        self._sampling: dict[int, asyncio.Task[None]] = {}
        """By the number of the frame that asked: a call that came to nothing is asked again under its id."""
        self._waiting: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._numbers = count()
        self._gone = False
        self._reading = asyncio.create_task(self._read(reader), name="rllm-gateway-link")

    async def open_session(self, spec: SessionSpec, sampler: RolloutSampler) -> OpenedSession:
        """Open a session, of which `sampler` samples.

        Raises:
            BackendError: the gateway refused it, has ended, or does not answer.
        """
        self._samplers[spec.id] = sampler
        try:
            answer = await self._ask({"op": "open", "spec": asdict(spec)}, "open a session")
        except BaseException:
            del self._samplers[spec.id]
            raise
        return OpenedSession(**answer["opened"])

    async def close_session(self, session: str) -> SessionTrace:
        """Seal a session: its agent's calls are refused from here on, and those under way are given up.

        Raises:
            BackendError: as `open_session`.
        """
        try:
            answer = await self._ask({"op": "close", "session": session}, "close a session")
        finally:
            self._samplers.pop(session, None)
        return trace_of(answer["trace"])

    async def unless_ended(self, needed: Coroutine[Any, Any, T]) -> T:
        """What `needed` returns. It is cancelled when the gateway hangs up: an agent may wait for hours then.

        Raises:
            BackendError: the gateway has ended.
        """
        task = asyncio.create_task(needed)
        try:
            await asyncio.wait({task, self._reading}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise self._has_ended("play")
        finally:
            task.cancel()
            await asyncio.wait({task})

    @property
    def last_words(self) -> str:
        """The end of the gateway's log, and the signal that killed it."""
        return self._last_words()

    async def ended(self) -> None:
        """Return once the gateway has hung up."""
        await asyncio.wait([self._reading])

    async def close(self) -> None:
        """Hang up."""
        self._reading.cancel()
        self._fail()
        for task in list(self._sampling.values()):
            task.cancel()
        await asyncio.gather(self._reading, *self._sampling.values(), *self._closing, return_exceptions=True)
        with contextlib.suppress(ConnectionError):
            self._writer.close()
            await self._writer.wait_closed()

    async def _ask(self, body: dict[str, Any], what: str) -> Mapping[str, Any]:
        if self._gone:
            raise self._has_ended(what)
        number = next(self._numbers)
        future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._send(Frame({**body, "number": number}))
        try:
            async with asyncio.timeout(SECONDS_TO_ANSWER):
                answer = await future
        except TimeoutError as error:
            raise BackendError(
                "gateway-failed",
                f"Cannot {what}: the gateway has not answered for {SECONDS_TO_ANSWER:g} s.",
                "Continue from the newest checkpoint with --resume.",
            ) from error
        except EOFError as error:
            raise self._has_ended(what) from error
        finally:
            del self._waiting[number]
        if "error" in answer:
            raise BackendError(
                "gateway-failed", f"Cannot {what}: {answer['error']}.", "Look at the log of the gateway."
            )
        return answer

    def _has_ended(self, what: str) -> BackendError:
        return BackendError(
            "gateway-ended",
            f"Cannot {what}: the gateway has ended.",
            "Continue from the newest checkpoint with --resume.",
            self._last_words(),
        )

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                self._handle(await read_frame(reader))
        except EOFError:
            self._fail()

    def _handle(self, frame: Frame) -> None:
        body = frame.body
        match body["op"]:
            case "sample":
                task = asyncio.create_task(self._sample(frame))
                self._sampling[body["number"]] = task
                task.add_done_callback(lambda _: self._sampling.pop(body["number"], None))
            case "ended" if (sampler := self._samplers.pop(body["session"], None)) is not None:
                closing = asyncio.create_task(sampler.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            case "cancel" if body["number"] in self._sampling:
                self._sampling[body["number"]].cancel()
            case "answer" if (future := self._waiting.get(body["number"])) and not future.done():
                future.set_result(body)

    def _sampler(self, session: str) -> RolloutSampler | None:
        if session not in self._samplers and self._sampler_of is not None:
            self._samplers[session] = self._sampler_of(session)
        return self._samplers.get(session)

    async def _sample(self, frame: Frame) -> None:
        body, number = frame.body, frame.body["number"]
        sampler = self._sampler(body["session"])
        if sampler is None:
            self._send(_failed(number, "error", "the session is closed"))
            return
        try:
            completion = await sampler.sample(
                call=body["call"],
                branch=body["branch"],
                prompt_ids=frame.ids,
                max_tokens=body["max_tokens"],
                stop=tuple(body["stop"]),
                json_schema=body["json_schema"],
                top_logprobs=body["top_logprobs"],
                # A gateway of an earlier version does not ask for them.
                on_tokens=self._tokens_to(number) if body.get("partial") else None,
            )
        except PromptTooLongError as error:
            self._send(_failed(number, "too_long", str(error)))
        except UnsupportedSamplingError as error:
            self._send(_failed(number, "unsupported", str(error)))
        except BackendError as error:
            self._send(_failed(number, "gone", error.message))
        except RllmError as error:
            self._send(_failed(number, "error", error.message))
        except Exception as error:  # noqa: BLE001  (an engine is anybody's code; the agent's call fails)
            self._send(_failed(number, "error", described(error)))
        else:
            self._send(completion_frame(number, completion))

    def _tokens_to(self, number: int) -> OnTokens:
        return lambda ids: self._send(Frame({"op": "tokens", "number": number}, ids))

    def _send(self, frame: Frame) -> None:
        if not self._gone:
            self._writer.write(encoded(frame))

    def _fail(self) -> None:
        self._gone = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(EOFError())


def _failed(number: int, kind: str, text: str) -> Frame:
    return Frame({"op": "failed", "number": number, "kind": kind, "text": text})
