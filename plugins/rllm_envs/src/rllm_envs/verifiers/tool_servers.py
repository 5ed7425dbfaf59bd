"""The processes of tools. verifiers starts each in an empty directory, and waits three minutes for its port."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.mcp import launch
from verifiers.v1.runtimes.subprocess import SubprocessRuntime

from rllm_core.errors import ConfigError
from rllm_envs.module_path import find_module_path
from rllm_envs.verifiers.options import VerifiersParams

_start_server, _read_port = launch.serve_in_runtime, launch._read_back_port


@asynccontextmanager
async def serve(environment: vf.Env, params: VerifiersParams) -> AsyncIterator[None]:
    """Serve an environment and the tools that all its rollouts share. Tools import the same modules as this process.

    Raises:
        ConfigError: the process of a tool server does not start.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(_export_module_path())
        try:
            await stack.enter_async_context(environment.serving())
        except vf.ToolsetError as error:
            first, *log = str(error).strip().splitlines()
            raise ConfigError(
                "environment-options-rejected",
                f"Environment 'verifiers:{params.id}': {first}",
                "Correct this module, and end it with if __name__ == '__main__': CLASS.run()",
                details="\n".join(log[-3:]),
            ) from error
        yield


@contextmanager
def _export_module_path() -> Iterator[None]:
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = find_module_path()
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


async def _start_named_server(server: Any, runtime: vf.Runtime, **options: Any) -> int:
    """Do what `serve_in_runtime` does. Its errors name the module."""
    try:
        port: int = await _start_server(server, runtime, **options)
    except vf.ToolsetError as error:
        raise vf.ToolsetError(f"its tool server {type(server).__module__!r} does not start.\n{error}") from error
    return port


async def _read_port_of_running(runtime: vf.Runtime, path: str) -> int:
    """Do what `_read_back_port` does, and raise an error when the process ends."""
    reading = asyncio.ensure_future(_read_port(runtime, path))
    waiting = {reading}
    if isinstance(runtime, SubprocessRuntime):
        waiting.add(asyncio.ensure_future(runtime._background[-1].wait()))
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            raise vf.ToolsetError("its process ended before it served")
        port: int = reading.result()
    finally:
        for each in waiting:
            each.cancel()
    return port


vars(launch).update(serve_in_runtime=_start_named_server, _read_back_port=_read_port_of_running)
