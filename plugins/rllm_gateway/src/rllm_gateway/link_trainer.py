"""The trainer's end of the link: open and close sessions, and sample responses for their agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from rllm_core.errors import BackendError, RllmError, UnsupportedSamplingError, described
from rllm_gateway.link_data import FRAMES, MAX_BYTES, completion_as_json, trace_of
from rllm_gateway.link_policy import Failure, PolicyError
from rllm_gateway.rollout_sampler import RolloutSampler
from rllm_gateway.session import OpenedSession, SessionSpec, SessionTrace
from rllm_serving.connection import Connection, SendPart

T = TypeVar("T")
SECONDS_TO_ANSWER = 60.0
"""Time limit for opening or closing a session. This normally takes milliseconds."""


class TrainerLink:
    """The trainer's connection to the gateway. No other object may use the gateway's socket."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        sampler_of: Callable[[str], RolloutSampler] | None = None,
        last_words: Callable[[], str] = str,
    ) -> None:
        """Make the link. Needs a running event loop.

        Args:
            reader: reader of the gateway's socket.
            writer: writer of the gateway's socket.
            sampler_of: makes the sampler of a session that the gateway has opened. None if the gateway opens none.
            last_words: returns the end of the gateway's log, for the error if the gateway has stopped.
        """
        self._last_words = last_words
        self._sampler_of = sampler_of
        self._samplers: dict[str, RolloutSampler] = {}
        self._gateway = Connection(reader, writer, FRAMES, self._handle, MAX_BYTES)
        self._ended = asyncio.create_task(self._gateway.wait_ended())

    async def open_session(self, spec: SessionSpec, sampler: RolloutSampler) -> OpenedSession:
        """Open a session. `sampler` samples its responses.

        Raises:
            BackendError: the gateway rejected the session, has stopped, or does not answer.
        """
        self._samplers[spec.id] = sampler
        try:
            answer = await self._ask({"op": "open", "spec": asdict(spec)}, "open a session")
        except BaseException:
            del self._samplers[spec.id]
            raise
        return OpenedSession(**answer["opened"])

    async def close_session(self, session: str) -> SessionTrace:
        """Seal a session, and return its trace. Its running calls are cancelled, and later calls are rejected.

        Raises:
            BackendError: the gateway has stopped, or does not answer.
        """
        try:
            answer = await self._ask({"op": "close", "session": session}, "close a session")
        finally:
            self._samplers.pop(session, None)
        return trace_of(answer["trace"])

    async def unless_ended(self, needed: Coroutine[Any, Any, T]) -> T:
        """Await `needed` and return its result. If the gateway stops, cancel it, because an agent may wait for hours.

        Raises:
            BackendError: the gateway has stopped.
        """
        task = asyncio.create_task(needed)
        try:
            await asyncio.wait({task, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise self._has_ended("run the agent")
        finally:
            task.cancel()
            await asyncio.wait({task})

    @property
    def last_words(self) -> str:
        """The end of the gateway's log, and the signal that killed it."""
        return self._last_words()

    async def ended(self) -> None:
        """Return when the gateway has closed the connection."""
        await asyncio.wait([self._ended])

    async def close(self) -> None:
        """Close the connection."""
        await self._gateway.close()

    async def _ask(self, body: dict[str, Any], what: str) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = await self._gateway.ask(body, SECONDS_TO_ANSWER)
        except TimeoutError as error:
            raise BackendError(
                "gateway-failed",
                f"Cannot {what}: the gateway has not answered for {SECONDS_TO_ANSWER:g} s.",
                "Continue from the newest checkpoint with --resume.",
            ) from error
        except EOFError as error:
            raise self._has_ended(what) from error
        if "error" in answer:
            raise BackendError("gateway-failed", f"Cannot {what}: {answer['error']}.", "See the log of the gateway.")
        return answer

    def _has_ended(self, what: str) -> BackendError:
        return BackendError(
            "gateway-ended",
            f"Cannot {what}: the gateway has ended.",
            "Continue from the newest checkpoint with --resume.",
            self._last_words(),
        )

    async def _handle(self, body: Any, send_part: SendPart) -> dict[str, Any]:
        if body["op"] == "sample":
            return await self._sample(body, send_part)
        sampler = self._samplers.pop(body["session"], None)
        if sampler is not None:
            await sampler.close()
        return {}

    def _sampler(self, session: str) -> RolloutSampler | None:
        if session not in self._samplers and self._sampler_of is not None:
            self._samplers[session] = self._sampler_of(session)
        return self._samplers.get(session)

    async def _sample(self, body: Any, send_part: SendPart) -> dict[str, Any]:
        sampler = self._sampler(body["session"])
        if sampler is None:
            return _failure("error", "the session is closed")
        try:
            completion = await sampler.sample(
                call=body["call"],
                branch=body["branch"],
                prompt_ids=body["prompt_ids"],
                max_tokens=body["max_tokens"],
                stop=tuple(body["stop"]),
                json_schema=body["json_schema"],
                top_logprobs=body["top_logprobs"],
                on_tokens=(lambda ids: send_part({"token_ids": ids})) if body["partial"] else None,
            )
        except PolicyError as error:
            return _failure(error.failure, str(error))
        except UnsupportedSamplingError as error:
            return _failure("unsupported", str(error))
        except BackendError as error:
            return _failure("gone", error.message)
        except RllmError as error:
            return _failure("error", error.message)
        except Exception as error:  # noqa: BLE001  (an engine is foreign code; the agent's call fails)
            return _failure("error", described(error))
        return completion_as_json(completion)


def _failure(failure: Failure, message: str) -> dict[str, Any]:
    return {"failure": failure, "message": message}
