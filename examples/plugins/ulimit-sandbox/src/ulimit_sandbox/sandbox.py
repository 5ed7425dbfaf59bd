"""The sandbox `ulimit_sandbox`: a directory, and limits of memory, file size and CPU time for each process."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rllm_core.contracts import CommandResult, Sandbox, SandboxSetup

from ulimit_sandbox.options import UlimitSandboxParams


class UlimitSandbox(Sandbox):
    """A directory with the limits of `ulimit`, for code that you trust but that may run away. It isolates nothing."""

    isolates = False

    def __init__(self, params: UlimitSandboxParams, setup: SandboxSetup) -> None:
        # Units of `ulimit`: KiB of memory, blocks of 512 bytes, seconds.
        limits = f"ulimit -v {setup.memory // 1024} -f {setup.disk // 512} -t {params.cpu_seconds}"
        self._prefix = (
            "sh",
            "-c",
            f'{limits.replace(" -f", " && ulimit -f").replace(" -t", " && ulimit -t")} && exec "$@"',
            "sh",
        )
        self.root = tempfile.mkdtemp(prefix="ulimit_sandbox-")
        for name in ("app", "tmp", "logs", "tests", "home"):
            Path(self.root, name).mkdir()

    async def run(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        port: int | None = None,
    ) -> CommandResult:
        own = {"HOME": f"{self.root}/home", "SANDBOX_ROOT": self.root}
        # Files, because with pipes `wait` would also wait for processes that the command has left.
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            given.write(stdin)
            given.seek(0)
            process = await asyncio.create_subprocess_exec(
                *self._prefix,
                *command,
                stdin=given,
                stdout=output,
                stderr=errors,
                cwd=f"{self.root}/app",
                env={**os.environ, **own, **(environment or {})},
                start_new_session=True,
            )
            ended = asyncio.create_task(process.wait())
            try:
                timed_out = not (await asyncio.wait([ended], timeout=seconds))[0]
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # All its processes have ended.
                await ended
            output.seek(0)
            errors.seek(0)
            exit_code = None if timed_out else process.returncode
            return CommandResult(exit_code=exit_code, stdout=output.read(), stderr=errors.read())

    async def run_untrusted(self, command: Sequence[str], *, seconds: float, stdin: bytes = b"") -> CommandResult:
        return await self.run(command, seconds=seconds, stdin=stdin)

    async def copy_in(self, source: Path, target: str) -> None:
        shutil.rmtree(self.root + target, ignore_errors=True)
        shutil.copytree(source, self.root + target)

    async def stop(self) -> None:
        shutil.rmtree(self.root)


async def start(params: UlimitSandboxParams, setup: SandboxSetup) -> UlimitSandbox:
    return UlimitSandbox(params, setup)
