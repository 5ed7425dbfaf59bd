"""The server of the command ``untrusted``, with which tests run programs of the agent.

A program that runs among the tests could write the reward, or kill them. So the command sends the program to this
process, which runs it in the sandbox with `Sandbox.run_untrusted`. The agent has no key to this server, and its
programs cannot reach it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm.builtin.sandboxes import outward_links, untrusted_client
from rllm_core.contracts.sandbox import CommandResult, Sandbox
from rllm_core.errors import PluginError, RolloutError

SCRIPT = '#!/bin/sh\nexec python3 -I -S "${0%/*}/untrusted_client.py" "$@"\n'
IN_DIRECTORY = 'cd "$0" && exec "$@"'
LONGEST_REQUEST = 4 << 20
CONCURRENT = 4
"""Programs that one test runs at the same time. Others wait."""
TIMED_OUT = 124
NOT_STARTED = 126
SECONDS_FOR_LINKS = 60.0


def write_program(directory: Path) -> None:
    """Write the command ``untrusted`` into a directory of the machine, to be copied into a sandbox."""
    directory.mkdir(parents=True)
    source = Path(untrusted_client.__file__)
    (directory / source.name).write_bytes(source.read_bytes())
    (directory / "untrusted").write_text(SCRIPT)
    (directory / "untrusted").chmod(0o755)


async def remove_outward_links(sandbox: Sandbox, run: Any) -> None:
    """Remove the agent's links that lead to the tests, before tests read its files.

    Args:
        sandbox: the sandbox.
        run: its method `run`, or `run_untrusted` while tests run.

    Raises:
        RolloutError: the sandbox has no Python, or the agent has left too many files.
    """
    source = Path(outward_links.__file__).read_text(encoding="utf-8")
    result = await run(["python3", "-I", "-S", "-c", source, sandbox.root], seconds=SECONDS_FOR_LINKS)
    if result.exit_code != 0:
        said = result.stderr.decode(errors="replace").strip()[-200:]
        raise RolloutError(
            "tests-not-prepared",
            f"The agent's files cannot be checked before the tests, exit code {result.exit_code}: {said}",
            "Use an image that contains python3. If it does, the agent has left too many files or too long paths.",
        )


@dataclass
class Server:
    """Runs programs for the tests of one sandbox."""

    sandbox: Sandbox
    seconds: float
    """Time limit of each program. The tests end it earlier if they end."""
    key: str
    slots: asyncio.Semaphore
    port: int = 0
    """Port of 127.0.0.1 that it listens on."""
    failure: PluginError | RolloutError | None = None
    """Set if links of a program were not removed before the tests continued. They may then have read their own files
    as the agent's."""

    @property
    def address(self) -> str:
        """Value of the environment variable of the command ``untrusted``."""
        return f"{self.port} {self.key}"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Run the program of a connection. It is killed if the client stops it or is killed."""
        with closing(writer):
            try:
                request = json.loads(await reader.readline())
                if not hmac.compare_digest(str(request["key"]), self.key):
                    return
                stdin = await reader.readexactly(min(request["stdin"], untrusted_client.LARGEST_INPUT))
                command = ["sh", "-c", IN_DIRECTORY, str(request["directory"]), *map(str, request["command"])]
            except (ValueError, KeyError, TypeError, RecursionError, OSError, asyncio.IncompleteReadError):
                return  # It is not our client.
            gone = asyncio.create_task(_read_byte(reader))
            try:
                async with self.slots:
                    result = await self._run(command, stdin, gone)
            finally:
                gone.cancel()
                await asyncio.gather(gone, return_exceptions=True)
            await _send(writer, result)

    async def _run(self, command: Sequence[str], stdin: bytes, gone: asyncio.Task[bytes]) -> CommandResult:
        """Run a program until `gone` is done, and remove the links that it has made."""
        running = asyncio.create_task(self.sandbox.run_untrusted(command, seconds=self.seconds, stdin=stdin))
        try:
            await asyncio.wait([running, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        if gone.done() and gone.result() != untrusted_client.STOP:
            self.failure = _unawaited_error()
        try:
            await remove_outward_links(self.sandbox, self.sandbox.run_untrusted)
        except (PluginError, RolloutError) as error:
            self.failure = error
            return _start_failure(error)
        try:
            return CommandResult(exit_code=None, stdout=b"", stderr=b"") if running.cancelled() else running.result()
        except (PluginError, RolloutError) as error:
            return _start_failure(error)


def _start_failure(error: PluginError | RolloutError) -> CommandResult:
    return CommandResult(exit_code=NOT_STARTED, stdout=b"", stderr=f"untrusted: {error.message}\n".encode())


def _unawaited_error() -> RolloutError:
    return RolloutError(
        "untrusted-not-awaited",
        "The tests killed `untrusted`, or ended before it.",
        "Write `untrusted timeout 10 COMMAND` for a time limit, and `wait` for commands in the background.",
    )


async def _read_byte(reader: asyncio.StreamReader) -> bytes:
    """Return the next byte of a connection. Empty at its end."""
    try:
        return await reader.read(1)
    except OSError:
        return b""


async def _send(writer: asyncio.StreamWriter, result: CommandResult) -> None:
    code = result.exit_code
    if code is None or code < 0:
        code = TIMED_OUT if code is None else 128 - code
    facts = {"exit_code": code, "stdout": len(result.stdout), "stderr": len(result.stderr)}
    try:
        writer.writelines([json.dumps(facts).encode(), b"\n", result.stdout, result.stderr])
        await writer.drain()
    except OSError:
        pass  # The tests have ended.


@asynccontextmanager
async def serve_untrusted_programs(sandbox: Sandbox, seconds: float) -> AsyncIterator[Server]:
    """Serve the command ``untrusted`` for tests in `sandbox`."""
    server = Server(sandbox, seconds, secrets.token_hex(16), asyncio.Semaphore(CONCURRENT))
    answers: set[asyncio.Task[None]] = set()

    def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = asyncio.create_task(server.answer(reader, writer))
        answers.add(answer)
        answer.add_done_callback(answers.discard)

    listening = await asyncio.start_server(on_connection, "127.0.0.1", 0, limit=LONGEST_REQUEST)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        # The tests have ended, and their connections too, so all programs end. A cancellation could leave one running.
        await asyncio.gather(*answers, return_exceptions=True)
