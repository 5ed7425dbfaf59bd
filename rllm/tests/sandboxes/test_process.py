"""Programs that cannot be started."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest
from expecting import expect_error

from rllm.sandboxes.process import run_program
from rllm_core.errors import PluginError


async def run(*command: str) -> None:
    await run_program(command, seconds=60.0, stdin=b"", environment={})


def test_argument_longer_than_linux_allows_is_an_error() -> None:
    with expect_error(PluginError, "sandbox-failed"):
        asyncio.run(run("echo", "x" * 140_000))


def test_cancellation_during_a_failed_start_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cancel() -> None:
        begun = asyncio.Event()

        async def fail(*command: Any, **options: Any) -> None:
            begun.set()
            await asyncio.sleep(0.01)
            raise OSError(errno.EAGAIN, "again")

        monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
        running = asyncio.create_task(run("echo"))
        await begun.wait()
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())
