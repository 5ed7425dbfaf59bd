"""The process that runs vLLM, with real processes and sockets and without vLLM: failures, deadlines, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import virtual_time
from expecting import expect_error

from rllm_core.contracts.engine import EngineSetup, SamplingParams
from rllm_core.errors import BackendError, RolloutError
from rllm_vllm.engine import VllmEngine
from rllm_vllm.options import VllmOptions

Serving = Callable[[str], None]
NEVER_IMPORTED = "import time; print('importing', flush=True); time.sleep(1000)"
"""Longer than any test may take: to wait for it is to hang."""


async def _closed_after(scenario: Callable[[VllmEngine], Awaitable[Any]], engine: VllmEngine) -> None:
    try:
        await scenario(engine)
    finally:
        await engine.close()


def _with_engine(scenario: Callable[[VllmEngine], Awaitable[Any]]) -> VllmEngine:
    """Run `scenario` with an engine, and close the engine."""
    engine = VllmEngine(VllmOptions())
    asyncio.run(_closed_after(scenario, engine))
    return engine


def _imports(engine: VllmEngine) -> bool:
    """Whether its process has come as far as `NEVER_IMPORTED`."""
    return engine._process is not None and "importing" in engine._process._process.log.read_text()


async def _until_it_imports(engine: VllmEngine) -> None:
    while not _imports(engine):
        await asyncio.sleep(0.01)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.long
def test_a_start_that_fails_says_why(setup: EngineSetup, serving: Serving) -> None:
    serving("raise ImportError('libcuda.so.1: cannot open shared object file')")

    async def scenario(engine: VllmEngine) -> None:
        with expect_error(BackendError, "worker-failed", "libcuda.so.1"):
            await engine.start(setup)

    assert not _alive(_with_engine(scenario).process_group)


@pytest.mark.long
def test_start_above_its_time_limit_fails(
    setup: EngineSetup, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rllm_vllm.engine.END", 0.2)
    serving(NEVER_IMPORTED)

    async def scenario(engine: VllmEngine) -> None:
        with expect_error(BackendError, "process-timeout", "start_timeout") as error:
            await engine.start(setup)
        assert "\nimporting" in error.value.details

    engine = VllmEngine(VllmOptions(start_timeout=3.0))
    virtual_time.run(_closed_after(scenario, engine), until=lambda: engine._files is None or _imports(engine))
    assert not _alive(engine.process_group)


def test_killed_process_is_an_immediate_error(setup: EngineSetup, serving: Serving) -> None:
    serving(NEVER_IMPORTED)

    async def scenario(engine: VllmEngine) -> None:
        starting = asyncio.create_task(engine.start(setup))
        await _until_it_imports(engine)
        os.killpg(engine.process_group, signal.SIGKILL)
        with expect_error(BackendError, "process-died", "--resume"):
            await starting
        with expect_error(BackendError, "process-died"):
            await engine.load_weights([], 1)

    _with_engine(scenario)


def test_a_cancelled_start_leaves_no_process(
    setup: EngineSetup, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rllm_vllm.engine.END", 0.2)
    serving(NEVER_IMPORTED)

    async def scenario(engine: VllmEngine) -> None:
        starting = asyncio.create_task(engine.start(setup))
        await _until_it_imports(engine)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    assert not _alive(_with_engine(scenario).process_group)


def test_prompt_without_room_and_early_load_fail(setup: EngineSetup) -> None:
    engine = VllmEngine(VllmOptions())
    engine.max_context = 4
    with pytest.raises(RolloutError, match="no room"):
        asyncio.run(engine.generate([5] * 4, SamplingParams(max_tokens=1), session="a"))
    with expect_error(BackendError, "not-started"):
        asyncio.run(engine.load_weights([], 0))
    asyncio.run(engine.close())
