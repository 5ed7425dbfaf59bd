"""The contract of sandboxes."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rllm_core.contracts.sandbox import CommandResult, Sandbox, SandboxPlugin, SandboxSetup
from rllm_plugin_kit.plugin import PluginContract

SECONDS = 60.0
NOT_FOUND = 127
WRITABLE = ("/app", "/tmp", "/logs", "/tests")
CONTENTS = b"\0\xff binary"
BEATS = """
trap '' TERM
for number in $(seq 1000); do echo x >> beats; sleep 0.01; done &
while [ ! -s beats ]; do sleep 0.01; done
"""
"""A command that leaves a process, which ignores SIGTERM and writes to a file for ten seconds."""


class SandboxContract(PluginContract[SandboxPlugin[Any]]):
    """Contract of every sandbox. The sandbox needs ``sh`` and the usual small programs, such as ``cat``."""

    kind = "sandbox"

    def setup(self) -> SandboxSetup:
        """Return the limits of the sandboxes in these tests."""
        return SandboxSetup()

    def test_outputs_and_exit_code_are_returned(self, params: Any) -> None:
        async def use(sandbox: Sandbox) -> CommandResult:
            return await sandbox.run(["sh", "-c", "cat; echo $WORD >&2; exit 3"], seconds=SECONDS, **given)

        given: Any = {"environment": {"WORD": "to errors"}, "stdin": b"to output"}
        result = self._use(params, use)
        expected = CommandResult(exit_code=3, stdout=b"to output", stderr=b"to errors\n")
        if result != expected:
            raise self.failure(
                f"returned {result} instead of {expected}",
                "Return the exit code and both outputs. Pass `stdin` and `environment` to the command.",
            )

    def test_missing_program_gives_exit_code_127(self, params: Any) -> None:
        async def use(sandbox: Sandbox) -> CommandResult:
            return await sandbox.run(["no-such-program"], seconds=SECONDS)

        if (code := self._use(params, use).exit_code) != NOT_FOUND:
            raise self.failure(f"returned the exit code {code} for a program that does not exist", "Return 127.")

    def test_files_stay_until_the_sandbox_stops(self, params: Any) -> None:
        async def use(sandbox: Sandbox) -> bytes:
            root = sandbox.root
            places = " ".join(f"{root}{place}/kept" for place in WRITABLE)
            line = f'for file in {places} "$HOME/kept"; do echo kept > $file; done; test "$SANDBOX_ROOT" = \'{root}\''
            first = await sandbox.run(["sh", "-c", line], seconds=SECONDS)
            second = await sandbox.run(["sh", "-c", f"cat {places} $HOME/kept; cat kept"], seconds=SECONDS)
            return second.stdout if first.exit_code == 0 else b""

        found = self._use(params, use)
        if found != b"kept\n" * (len(WRITABLE) + 2):
            raise self.failure(
                f"has lost files between two commands, or has no SANDBOX_ROOT: {found!r}",
                f"Keep {', '.join(WRITABLE)} and $HOME. Start commands in /app.",
            )

    def test_two_sandboxes_share_no_files(self, params: Any) -> None:
        async def use(sandbox: Sandbox) -> int | None:
            await sandbox.run(["sh", "-c", "echo mine > only_here"], seconds=SECONDS)
            async with self._start(params) as other:
                return (await other.run(["cat", "only_here"], seconds=SECONDS)).exit_code

        if self._use(params, use) == 0:
            raise self.failure("shares files with a different sandbox", "Give every sandbox its own directories.")

    def test_a_command_is_stopped_at_its_time_limit(self, params: Any) -> None:
        async def use(sandbox: Sandbox) -> CommandResult:
            return await sandbox.run(["sh", "-c", "trap '' TERM; echo said; while :; do sleep 1; done"], seconds=1)

        result = self._use(params, use)
        if (result.exit_code, result.stdout) != (None, b"said\n"):
            raise self.failure(
                f"returned {result} for a command that ignores SIGTERM and never ends",
                "Kill it with SIGKILL. Return its outputs, and None as the exit code.",
            )

    def test_no_process_stays_after_its_command(self, params: Any) -> None:
        async def use(sandbox: Sandbox) -> tuple[bytes, bytes]:
            await sandbox.run(["sh", "-c", BEATS], seconds=SECONDS)
            count = ["wc", "-l", "beats"]
            first = await sandbox.run(count, seconds=SECONDS)
            await sandbox.run(["sleep", "0.5"], seconds=SECONDS)
            return first.stdout, (await sandbox.run(count, seconds=SECONDS)).stdout

        first, second = self._use(params, use)
        if first != second or not first:
            raise self.failure(
                "has a process that still runs after its command has ended",
                "Kill all processes of a command at its end, because tests must run without the agent.",
            )

    def test_a_directory_is_copied_in(self, params: Any) -> None:
        async def use(sandbox: Sandbox, source: Path) -> bytes:
            await sandbox.run(["sh", "-c", f"echo x > {sandbox.root}/tests/earlier"], seconds=SECONDS)
            await sandbox.copy_in(source, "/tests")
            line = f"cd {sandbox.root}/tests && find . -type f | sort && cat deep/file"
            return (await sandbox.run(["sh", "-c", line], seconds=SECONDS)).stdout

        with tempfile.TemporaryDirectory() as name:
            source = Path(name)
            (source / "deep").mkdir()
            (source / "deep" / "file").write_bytes(CONTENTS)
            (source / "test.sh").write_bytes(b"exit 0\n")
            found = self._use(params, lambda sandbox: use(sandbox, source))
        if found != b"./deep/file\n./test.sh\n" + CONTENTS:
            raise self.failure(
                f"copied other files than it received: {found!r}", "`copy_in` replaces the directory with a copy."
            )

    def test_untrusted_commands_run_during_tests(self, params: Any) -> None:
        async def use(sandbox: Sandbox) -> list[CommandResult]:
            line = "mkfifo begun ended; echo x > begun; read -r end < ended; cat answer; exit 3"
            tests = asyncio.create_task(sandbox.run(["sh", "-c", line], seconds=SECONDS))
            waits = "while [ ! -p ended ]; do sleep 0.01; done; read -r x < begun; cat; echo 5 > answer"
            agent = await sandbox.run_untrusted(["sh", "-c", waits], seconds=SECONDS, stdin=b"to output")
            await sandbox.run_untrusted(["sh", "-c", "echo x > ended"], seconds=SECONDS)
            return [agent, await tests]

        expected = [
            CommandResult(exit_code=code, stdout=output, stderr=b"")
            for code, output in ((0, b"to output"), (3, b"5\n"))
        ]
        if (found := self._use(params, use)) != expected:
            raise self.failure(
                f"returned {found} for an untrusted command and the tests, instead of {expected}",
                "Both run in /app at the same time. The end of one does not end the other.",
            )

    def test_untrusted_commands_see_no_tests(self, params: Any) -> None:
        async def use(sandbox: Sandbox) -> bytes:
            places = " ".join(f"{sandbox.root}{place}/seen" for place in ("/tests", "/logs", "/tmp"))
            await sandbox.run(["sh", "-c", f"for file in {places}; do echo seen > $file; done"], seconds=SECONDS)
            result = await sandbox.run_untrusted(["sh", "-c", f"cat {places} 2>/dev/null"], seconds=SECONDS)
            return result.stdout if sandbox.isolates else b""

        if self._use(params, use):
            raise self.failure(
                "shows the tests' files to a program of the agent, which could change them",
                "Hide /tests, /logs and /tmp in `run_untrusted`. If the sandbox cannot, set `isolates = False`.",
            )

    def _use(self, params: Any, act: Callable[[Sandbox], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            async with self._start(params) as sandbox:
                return await act(sandbox)

        with self.explain_errors("failed", "A sandbox runs any command, and copies any directory."):
            return asyncio.run(run())

    @asynccontextmanager
    async def _start(self, params: Any) -> AsyncIterator[Sandbox]:
        sandbox: Sandbox = await self.load_plugin()(params, self.setup())
        try:
            yield sandbox
        finally:
            await sandbox.stop()
