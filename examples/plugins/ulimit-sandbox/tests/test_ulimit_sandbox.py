"""The contract of every sandbox, and the limits of this one."""

import asyncio
import sys

from rllm_core.contracts import CommandResult, SandboxSetup
from rllm_plugin_kit import SandboxContract

from ulimit_sandbox.options import UlimitSandboxParams
from ulimit_sandbox.sandbox import start


class TestUlimitSandbox(SandboxContract):
    name = "ulimit-sandbox/ulimit_sandbox"
    options = ({}, {"cpu_seconds": 60})


def run(command: list[str], **limits: int) -> CommandResult:
    async def run_once() -> CommandResult:
        sandbox = await start(UlimitSandboxParams(cpu_seconds=1), SandboxSetup(**limits))
        try:
            return await sandbox.run(command, seconds=60)
        finally:
            await sandbox.stop()

    return asyncio.run(run_once())


def test_commands_cannot_exceed_their_limits() -> None:
    assert run([sys.executable, "-c", "bytes(1 << 30)"], memory=256 << 20).exit_code != 0
    assert run([sys.executable, "-c", "open('big', 'wb').write(bytes(1 << 20))"], disk=1 << 16).exit_code != 0
    assert run([sys.executable, "-c", "while True: pass"]).exit_code != 0
    assert run([sys.executable, "-c", "print(1)"]).stdout == b"1\n"
