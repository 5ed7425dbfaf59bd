"""Closing leaves nothing behind: no thread, no task, no process, and nobody who waits."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from tinker.lib import internal_client_holder
from tinker_in_process import RunningServer

from rllm.config.compose import compose
from rllm.config.layers import layer_from_keys
from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.errors import BackendError
from rllm_core.plugins.registry import Registry
from rllm_tinker.backend import TinkerBackend

from .conftest import DEADLINE, KEY, wait_until


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEY)


def _context(registry: Registry, url: str, **settings: Any) -> RunContext:
    values = {"rllm.backend": "tinker", "tinker_base_url": url, "model.name": "tiny", "rllm.env.name": "guess"}
    composed = compose(registry, [layer_from_keys(values | settings, "the test")])
    return RunContext(
        config=composed.config, backend_config=composed.backend_config, seed=0, total_steps=1, needs=frozenset()
    )


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def _client_tasks() -> set[Any]:
    """Tasks on the one loop that all clients of a process share. Clients of other tests may have some."""
    loop = internal_client_holder._internal_client_holder_thread_singleton.get_loop()

    async def tasks() -> set[Any]:
        return asyncio.all_tasks() - {asyncio.current_task()}

    return asyncio.run_coroutine_threadsafe(tasks(), loop).result(DEADLINE)


def _wait_until_only(tasks: set[Any]) -> None:
    """Tasks end a moment after their client has been closed."""
    wait_until(lambda: _client_tasks() <= tasks)


async def _start_and_close(context: RunContext) -> None:
    backend = TinkerBackend()
    engine = await backend.start(context)
    await engine.generate(np.array([5], np.int32), SamplingParams(max_tokens=2), session="s")
    await backend.close()
    await backend.close()


def test_closed_backend_leaves_no_thread_or_task(registry: Registry, server: RunningServer) -> None:
    context = _context(registry, server.url)
    tasks = _client_tasks()
    asyncio.run(_start_and_close(context))
    threads = _threads()
    asyncio.run(_start_and_close(context))
    assert _threads() == threads
    _wait_until_only(tasks)


@pytest.mark.long
def test_closing_after_a_failed_start(registry: Registry, server: RunningServer) -> None:
    async def fail(context: RunContext) -> None:
        backend = TinkerBackend()
        with pytest.raises(BackendError):
            await backend.start(context)
        await backend.close()
        await backend.close()

    asyncio.run(_start_and_close(_context(registry, server.url)))
    tasks, threads = _client_tasks(), _threads()
    unknown = {"model.name": "unknown", "model.tokenizer": "tiny"}
    asyncio.run(fail(_context(registry, server.url, **unknown)))
    asyncio.run(fail(_context(registry, "http://127.0.0.1:9", tinker_connect_timeout=0.5)))
    assert _threads() == threads
    _wait_until_only(tasks)


def test_closing_a_backend_that_was_never_started() -> None:
    asyncio.run(TinkerBackend().close())


def test_close_cancels_running_requests(registry: Registry, server: RunningServer) -> None:
    async def close_in_the_middle() -> list[Any]:
        backend = TinkerBackend()
        engine = await backend.start(_context(registry, server.url))
        long = SamplingParams(max_tokens=400)
        calls = [
            asyncio.ensure_future(engine.generate(np.array([5], np.int32), long, session=str(number)))
            for number in range(32)
        ]
        await asyncio.sleep(0.1)
        # These have not even been sent.
        calls += [asyncio.ensure_future(engine.generate(np.array([6], np.int32), long, session="late"))]
        await asyncio.sleep(0)
        async with asyncio.timeout(DEADLINE):
            await backend.close()
            return await asyncio.gather(*calls, return_exceptions=True)

    tasks = _client_tasks()
    found = asyncio.run(close_in_the_middle())
    # Some responses may have ended before, at the end token.
    left = [each for each in found if not isinstance(each, Completion)]
    assert left and all(isinstance(each, asyncio.CancelledError | BackendError) for each in left)
    _wait_until_only(tasks)
