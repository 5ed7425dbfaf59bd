"""What goes wrong is an error that says what, in bounded time, and leaves no process behind."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rllm_core.contracts.engine import SamplingParams
from rllm_core.contracts.renderer import Renderer
from rllm_core.errors import BackendError
from rllm_local.samplers import HostedSampler
from rllm_local.settings import LocalConfig
from rllm_vllm.engine import VllmEngine


def _group(leader: int) -> dict[int, str]:
    """The processes of a group that are alive, with their names."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        state, _, group = rest.split()[:3]
        if int(group) == leader and state != "Z":
            found[int(stat.parent.name)] = name
    return found


def test_unknown_vllm_argument_is_an_error(
    make_hosting: Callable[..., HostedSampler], renderer: Renderer, settings: LocalConfig
) -> None:
    async def start() -> None:
        hosting = make_hosting(engine_args={"color": "red"})
        try:
            with pytest.raises(BackendError, match="unexpected keyword argument 'color'"):
                await hosting.start(renderer, 256, settings)
        finally:
            await hosting.close()

    asyncio.run(start())


def test_killed_engine_process_is_an_error_without_leftovers(
    make_hosting: Callable[..., HostedSampler], renderer: Renderer, settings: LocalConfig
) -> None:
    async def kill_and_continue() -> int:
        hosting = make_hosting()
        engine = hosting.engine
        assert isinstance(engine, VllmEngine)
        try:
            await hosting.start(renderer, 256, settings)
            group = engine.process_group
            # Linux keeps 15 characters of VLLM::EngineCore.
            children = [pid for pid, name in _group(group).items() if name == "VLLM::EngineCor"]
            assert children, _group(group)
            calls = [
                asyncio.create_task(engine.generate([5], SamplingParams(max_tokens=250, seed=i), session=str(i)))
                for i in range(200)
            ]
            await asyncio.sleep(0.1)
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            started = time.monotonic()
            results = await asyncio.gather(*calls, return_exceptions=True)
            failures = [result for result in results if isinstance(result, BaseException)]
            assert failures
            assert {type(failure) for failure in failures} == {BackendError}
            with pytest.raises(BackendError, match="vLLM"):
                await hosting.sync_weights(1)
            assert time.monotonic() - started < 30
            return group
        finally:
            await hosting.close()

    group = asyncio.run(kill_and_continue())
    assert not _group(group)
