"""The sandbox `local`: a temporary directory, without isolation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllm.builtin.sandboxes.process import SECONDS_TO_END, run_program
from rllm_core.contracts.sandbox import CommandResult, Sandbox, SandboxSetup
from rllm_serving.supervisor import end_supervised_command, supervise_command

MARK = "RLLM_COMMAND"
"""Environment variable with a random value for each command. A process that has left its process group has it too."""
DIRECTORIES = ("app", "tmp", "home", "logs", "tests")


class LocalSandbox(Sandbox):
    """A directory that contains the directories of a sandbox. Only the time of commands is limited."""

    isolates = False

    def __init__(self, directory: Path) -> None:
        self.root = str(directory)
        for name in DIRECTORIES:
            (directory / name).mkdir()

    async def run(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        port: int | None = None,
    ) -> CommandResult:
        directory, mark = f"{self.root}/app", secrets.token_hex(8)
        variables = {
            "HOME": f"{self.root}/home",
            "TMPDIR": f"{self.root}/tmp",
            "SANDBOX_ROOT": self.root,
            # Some programs work in this directory, and not in the current directory.
            "PWD": directory,
            MARK: mark,
        }

        async def end(process: asyncio.subprocess.Process) -> None:
            if process.returncode is None:
                end_supervised_command(process.pid)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SECONDS_TO_END):
                        await process.wait()
            await asyncio.to_thread(_kill_processes, f"{MARK}={mark}".encode())

        return await run_program(
            supervise_command(command),
            seconds=seconds,
            stdin=stdin,
            environment={**os.environ, **variables, **(environment or {})},
            cwd=directory,
            end=end,
        )

    async def run_untrusted(self, command: Sequence[str], *, seconds: float, stdin: bytes = b"") -> CommandResult:
        return await self.run(command, seconds=seconds, stdin=stdin)

    async def copy_in(self, source: Path, target: str) -> None:
        await asyncio.to_thread(_replace, source, Path(self.root + target))

    async def stop(self) -> None:
        await asyncio.to_thread(_remove, Path(self.root))


async def start_local(params: Any, setup: SandboxSetup) -> LocalSandbox:
    """Make the directory of a sandbox."""
    return LocalSandbox(Path(tempfile.mkdtemp(prefix="rllm-sandbox-")))


def _replace(source: Path, target: Path) -> None:
    _remove(target)
    shutil.copytree(source, target, symlinks=True)


def _remove(path: Path) -> None:
    """Remove a directory, also if its files have no permissions. A link is removed, and its target is not."""
    if path.is_dir() and not path.is_symlink():
        # Functions of Python fail in a directory that has thousands of levels.
        subprocess.run(["chmod", "-R", "u+rwX", path], capture_output=True, check=False)
    subprocess.run(["rm", "-rf", path], check=True)


def _kill_processes(mark: bytes) -> None:
    """Kill the processes of a command that have left its process group, and those that they start meanwhile."""
    deadline = time.monotonic() + SECONDS_TO_END
    while time.monotonic() < deadline:
        found = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if _has(path, mark)]
        if not found:
            return
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _has(environment: Path, variable: bytes) -> bool:
    try:
        return variable in environment.read_bytes().split(b"\0")
    except OSError:  # It has ended, or is a process of a different user.
        return False
