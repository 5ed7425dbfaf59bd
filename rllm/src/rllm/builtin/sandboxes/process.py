"""Run a program to its end, with a time limit and a limit for its output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self

from rllm_core.contracts.sandbox import CommandResult
from rllm_core.errors import PluginError

LARGEST_OUTPUT = 16 << 20
"""Bytes of standard output and of standard error that are kept. The start of a longer output is lost."""
LAST_LINES, LAST_BYTES = 15, 16_384
"""The part of an output that errors show."""
CHUNK = 1 << 16
NOT_FOUND = 127
SECONDS_TO_END = 10.0


def lines_at_end(output: bytes) -> tuple[str, ...]:
    """Return the last lines of an output that are not empty."""
    lines = output[-LAST_BYTES:].decode(errors="replace").splitlines()
    return tuple(line for line in lines if line.strip())[-LAST_LINES:]


async def kill_group(process: asyncio.subprocess.Process) -> None:
    """Kill the process and its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def run_program(
    command: Sequence[str],
    *,
    seconds: float,
    stdin: bytes,
    environment: Mapping[str, str],
    end: Callable[[asyncio.subprocess.Process], Awaitable[None]] = kill_group,
    **options: Any,
) -> CommandResult:
    """Run a program in its own process group, and end the group.

    Args:
        command: the program and its arguments.
        seconds: time limit.
        stdin: standard input.
        environment: all environment variables of the program.
        end: kills the program and all its processes. Called at its end too, because it may have left processes.
        **options: options of `asyncio.create_subprocess_exec`, such as ``cwd``.

    Raises:
        PluginError: no process can be started.
    """
    # With pipes of asyncio, `Process.wait` would also wait for processes that the program has left.
    with tempfile.TemporaryFile() as file:
        file.write(stdin)
        file.seek(0)
        outputs = [await _Output.open() for _ in range(2)]
        try:
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    *command,
                    stdin=file,
                    stdout=outputs[0].writing,
                    stderr=outputs[1].writing,
                    env=dict(environment),
                    start_new_session=True,
                    **options,
                )
            )
            try:
                # If the start were cancelled, asyncio would kill the program, but not its child processes.
                process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                with contextlib.suppress(OSError):  # No process was started.
                    await _end(await starting, end)
                raise
            except (FileNotFoundError, PermissionError) as error:
                text = f"{command[0]}: {error.strerror}\n"
                return CommandResult(exit_code=NOT_FOUND, stdout=b"", stderr=text.encode())
            except OSError as error:
                raise PluginError(
                    "sandbox-failed",
                    f"{command[0]} cannot be started in a sandbox: {error.strerror}.",
                    "Run fewer rollouts, and shorten the arguments and environment variables of the command.",
                ) from error
            timed_out = False
            try:
                async with asyncio.timeout(seconds):
                    await process.wait()
            except TimeoutError:
                timed_out = True
            finally:
                await asyncio.shield(_end(process, end))
            stdout, stderr = [await output.finish() for output in outputs]
            return CommandResult(exit_code=None if timed_out else process.returncode, stdout=stdout, stderr=stderr)
        finally:
            for output in outputs:
                output.close()


async def _end(
    process: asyncio.subprocess.Process, end: Callable[[asyncio.subprocess.Process], Awaitable[None]]
) -> None:
    await end(process)
    await process.wait()


class _Output:
    """A pipe, and the end of the bytes that were written to it."""

    def __init__(self, stream: asyncio.StreamReader, transport: asyncio.ReadTransport, writing: int) -> None:
        self.writing = writing
        self._stream = stream
        self._transport = transport
        self._kept = bytearray()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls) -> Self:
        reading, writing = os.pipe()
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb", 0)
        )
        return cls(stream, transport, writing)

    async def _read(self) -> None:
        while part := await self._stream.read(CHUNK):
            self._kept += part
            if len(self._kept) > 2 * LARGEST_OUTPUT:
                del self._kept[:-LARGEST_OUTPUT]

    async def finish(self) -> bytes:
        """Return the output after the end of all processes. A process that is still running loses its later output."""
        os.close(self.writing)
        self.writing = -1
        await asyncio.wait([self._reading], timeout=SECONDS_TO_END)
        return bytes(self._kept[-LARGEST_OUTPUT:])

    def close(self) -> None:
        if self.writing >= 0:
            os.close(self.writing)
        self._reading.cancel()
        self._transport.close()
