"""Requests to the process that runs vLLM, and their replies: many at a time, each with a deadline."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

from rllm_core.errors import BackendError, UnsupportedSamplingError
from rllm_vllm.messages import Abort, Answer, Body, Failure, Request, Response, Unsupported, read, write
from rllm_vllm.process import ServerProcess

RESUME = "Go on from the newest checkpoint with --resume."


class Connection:
    """The only one that reads from and writes to the socket of a `ServerProcess`."""

    def __init__(self, process: ServerProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._process = process
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = count()
        self._gone = False
        self._reading = asyncio.create_task(self._read(reader), name="rllm-vllm-replies")

    @classmethod
    async def to(cls, process: ServerProcess) -> Connection:
        reader, writer = await asyncio.open_connection(sock=process.connection)
        return cls(process, reader, writer)

    async def ask(self, body: Body, what: str, *, within: float, option: str) -> Any:
        """The answer to a request. Cancelled, it tells the other side that nobody waits any more.

        Args:
            body: what is asked for.
            what: the same, for people.
            within: seconds until it is given up.
            option: the option that says so.

        Raises:
            UnsupportedSamplingError: a reply cannot be constrained to the request's JSON schema.
            BackendError: vLLM could not do it, has ended, or did not answer in time.
        """
        number = next(self._numbers)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if self._gone:
            raise self._ended(what)
        self._waiting[number] = future
        write(self._writer, Request(number, body))
        try:
            async with asyncio.timeout(within):
                answer = await future
        except TimeoutError as error:
            self._abort(number)
            raise BackendError(
                "process-timeout",
                f"{what} has taken {within:g} s.",
                f"Raise its option {option}. {self._process.log_tail()}",
            ) from error
        except asyncio.CancelledError:
            self._abort(number)
            raise
        except EOFError as error:
            raise self._ended(what) from error
        finally:
            del self._waiting[number]
        if isinstance(answer, Unsupported):
            raise UnsupportedSamplingError(answer.code, answer.message, answer.hint)
        if isinstance(answer, Failure):
            raise BackendError("worker-failed", f"{what} failed: {answer.what.rstrip('.')}.", self._process.log_tail())
        return answer

    async def close(self) -> None:
        """Hang up: the process ends by itself then."""
        self._reading.cancel()
        self._writer.close()
        self._fail()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                response: Response = await read(reader)
                future = self._waiting.get(response.number)
                if future is not None and not future.done():
                    future.set_result(response.answer)
        except EOFError:
            self._fail()

    def _fail(self) -> None:
        self._gone = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(EOFError())

    def _abort(self, number: int) -> None:
        if not self._gone:
            write(self._writer, Request(next(self._numbers), Abort(number)))

    def _ended(self, what: str) -> BackendError:
        return BackendError(
            "process-died", f"{what}: vLLM's process has ended.", f"{RESUME} {self._process.log_tail()}"
        )
