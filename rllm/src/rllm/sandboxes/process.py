"""Run a program to its end, with a time limit and a limit for its output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rllm_core.contracts.sandbox import CommandResult
from rllm_core.errors import PluginError

LARGEST_OUTPUT = 16 << 20
"""Bytes of standard output and of standard error that are kept. The start of a longer output is lost."""
CHUNK = 1 << 16
NOT_FOUND = 127
SECONDS_TO_END = 10.0


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
    pipe = asyncio.subprocess.PIPE
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(environment), start_new_session=True, **options
        )
    )
    try:
        # If the start were cancelled, asyncio would kill the program, but not its child processes.
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _end(await starting, end)
        raise
    except (FileNotFoundError, PermissionError) as error:
        return CommandResult(exit_code=NOT_FOUND, stdout=b"", stderr=f"{command[0]}: {error.strerror}\n".encode())
    except OSError as error:
        raise PluginError(
            "sandbox-failed", f"{command[0]} cannot be started: {error}.", "Run fewer rollouts at once."
        ) from error
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    outputs = [asyncio.create_task(_read(stream)) for stream in (process.stdout, process.stderr)]
    feeding = asyncio.create_task(_feed(process.stdin, stdin))
    timed_out = False
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        timed_out = True
    finally:
        await asyncio.shield(_end(process, end))
        feeding.cancel()
        # A process that has left the group may keep a pipe open.
        await asyncio.wait(outputs, timeout=SECONDS_TO_END)
        for output in outputs:
            output.cancel()
    stdout, stderr = (output.result() if output.done() and not output.cancelled() else b"" for output in outputs)
    return CommandResult(exit_code=None if timed_out else process.returncode, stdout=stdout, stderr=stderr)


async def _end(
    process: asyncio.subprocess.Process, end: Callable[[asyncio.subprocess.Process], Awaitable[None]]
) -> None:
    await end(process)
    await process.wait()


async def _feed(stream: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(data)
        await stream.drain()
        stream.close()


async def _read(stream: asyncio.StreamReader) -> bytes:
    kept = bytearray()
    while part := await stream.read(CHUNK):
        kept += part
        if len(kept) > 2 * LARGEST_OUTPUT:
            del kept[:-LARGEST_OUTPUT]
    return bytes(kept[-LARGEST_OUTPUT:])
