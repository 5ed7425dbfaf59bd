"""Start the gateway's process from the trainer, or attach to a gateway that already runs."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rllm_core.contracts.renderer import Renderer
from rllm_core.contracts.workflow import OpenedRun
from rllm_core.errors import BackendError
from rllm_core.schema.run_sections import SdkSection
from rllm_gateway.running.rollout_session import OpenedGateway
from rllm_gateway.sampling.link_trainer import TrainerLink
from rllm_gateway.serving.checks import RUN_PORT, check_store, token_of
from rllm_gateway.serving.child import ChildSettings
from rllm_gateway.serving.store_paths import store_path
from rllm_serving.child_process import ChildProcess
from rllm_serving.listening import EndedError, wait_for_url


@asynccontextmanager
async def open_gateway(run: OpenedRun, directory: Path) -> AsyncIterator[OpenedGateway]:
    """Open the gateway of a run until the context ends.

    Args:
        run: the run, whose ``rllm.sdk`` configures the gateway.
        directory: directory for the gateway's temporary files.
    """
    sdk, trainer = run.config.rllm.sdk, run.config.rllm.trainer
    store = store_path(sdk.store.path, run.directory)
    if sdk.proxy.mode != "external" and sdk.store.path is None and not run.replaces:
        # Check the store before anything is sampled. `check_sdk` has already checked a store from the configuration.
        await asyncio.to_thread(check_store, store, "rllm.sdk.store.path")
    renderer = run.engine.renderer
    if sdk.proxy.mode == "external":
        gateway = running_gateway(renderer, sdk, directory)
    else:
        gateway = gateway_process(renderer, store, sdk.proxy.host, sdk.proxy.port, directory)
    async with gateway as (link, _):
        yield OpenedGateway(
            link=link,
            run=f"{trainer.project_name}/{trainer.experiment_name}",
            processing=sdk.processing,
            engine_stops=run.stop_texts,
        )


MODEL = "policy"
"""Name of the model for clients."""
SECONDS_TO_START = 120.0
SECONDS_TO_END = 10.0


@asynccontextmanager
async def gateway_process(
    renderer: Renderer, store: Path, host: str, port: int, directory: Path
) -> AsyncIterator[tuple[TrainerLink, str]]:
    """Start a gateway and yield the link to it and its URL. It stops with the context, or with this process.

    Args:
        renderer: renderer of the model, made by `make_renderer`.
        store: file of its store.
        host: address to listen on for agents.
        port: port for agents.
        directory: directory for its log and its files, which may be deleted afterwards.

    Raises:
        ConfigError: the gateway's process cannot load the renderer.
        BackendError: the gateway does not start.
    """
    from rllm_backend_kit.portable_renderer import save_renderer

    rendering = directory / "renderer"
    rendering.mkdir()
    save_renderer(renderer, rendering)
    announcement = directory / "gateway.json"
    ours, theirs = socket.socketpair()
    with theirs:
        settings = ChildSettings(
            descriptor=theirs.fileno(),
            renderer=str(rendering),
            store=str(store),
            host=host,
            port=port,
            announcement=str(announcement),
            model=MODEL,
        )
        program = [sys.executable, "-m", "rllm_gateway.serving.child", settings.as_argument()]
        process = ChildProcess.spawn(program, directory / "gateway.log", _environment(), [theirs.fileno()])
    link: TrainerLink | None = None
    try:
        link = TrainerLink(*await asyncio.open_connection(sock=ours), process.log_tail)
        yield link, await _answering(announcement, process)
    finally:
        if link is not None:
            await link.close()
        await process.end(SECONDS_TO_END)


@asynccontextmanager
async def running_gateway(
    renderer: Renderer, sdk: SdkSection, directory: Path
) -> AsyncIterator[tuple[TrainerLink, str]]:
    """Attach to a running ``rllm gateway serve``, and yield the link to it and its URL.

    The gateway keeps running after the context.

    Args:
        renderer: renderer of the model, made by `make_renderer`.
        sdk: address of the gateway and its admin token. If the token is None, it is read from the user's file.
        directory: directory to write the renderer to, for the gateway.

    Raises:
        ConfigError: the gateway's process cannot load the renderer, or the token cannot be read.
        BackendError: no gateway runs there, or it rejects the run.
    """
    from rllm_backend_kit.portable_renderer import save_renderer
    from rllm_gateway.serving.attaching import attach

    rendering = directory / "renderer"
    rendering.mkdir()
    save_renderer(renderer, rendering)
    ends = await attach(sdk.proxy.host, sdk.proxy.port + RUN_PORT, token_of(sdk.proxy), rendering, MODEL)
    link = TrainerLink(*ends)
    try:
        yield link, f"http://{sdk.proxy.host}:{sdk.proxy.port}"
    finally:
        await link.close()


async def _answering(announcement: Path, process: ChildProcess) -> str:
    """Wait until the gateway has started, and return its URL."""
    try:
        return await wait_for_url(announcement, process, SECONDS_TO_START)
    except (EndedError, TimeoutError) as error:
        raise BackendError(
            "process-not-started",
            "The gateway does not start. The end of its log is below.",
            "Check `rllm.sdk.store` and `rllm.sdk.proxy`.",
            process.log_tail(),
        ) from error


def _environment() -> dict[str, str]:
    """Return environment variables for the gateway's process.

    Hugging Face tokenizers otherwise start threads and warn about forks. The gateway renders one prompt at a time, so
    it does not need these threads.
    """
    return {"TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "false"), "HF_HUB_OFFLINE": "1"}
