"""The sandbox `local`: a temporary directory, without isolation."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllm.sandboxes.process import run_program
from rllm_core.contracts.sandbox import CommandResult, Sandbox, SandboxSetup
from rllm_core.errors import RolloutError

DIRECTORIES = ("app", "tmp", "home", "logs", "tests")


class LocalSandbox(Sandbox):
    """A directory that contains the directories of a sandbox. Only the time of commands is limited."""

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
        directory = f"{self.root}/app"
        variables = {
            "HOME": f"{self.root}/home",
            "TMPDIR": f"{self.root}/tmp",
            "SANDBOX_ROOT": self.root,
            # Some programs work in this directory, and not in the current directory.
            "PWD": directory,
        }
        return await run_program(
            command,
            seconds=seconds,
            stdin=stdin,
            environment={**os.environ, **variables, **(environment or {})},
            cwd=directory,
        )

    async def copy_in(self, source: Path, target: str) -> None:
        await asyncio.to_thread(_replace, source, Path(self.root + target))

    async def copy_out(self, source: str, target: Path) -> None:
        directory = Path(self.root + source)
        if not directory.is_dir():
            raise RolloutError("copy-failed", f"The sandbox has no directory {source}.", "Check the task's tests.")
        await asyncio.to_thread(shutil.copytree, directory, target, symlinks=True, dirs_exist_ok=True)

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
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        for directory, _, _ in os.walk(path):
            Path(directory).chmod(0o700)
        shutil.rmtree(path)
