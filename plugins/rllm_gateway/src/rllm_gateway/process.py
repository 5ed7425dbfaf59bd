"""The gateway's process, seen from the trainer."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rllm_core.contracts.renderer import Renderer
from rllm_core.errors import BackendError
from rllm_core.schema.sdk_section import SdkSection
from rllm_gateway.checks import RUN_PORT, token_of
from rllm_gateway.child import ChildSettings
from rllm_gateway.deployment import Deployment
from rllm_gateway.link_trainer import TrainerLink
from rllm_gateway.rollout_sampler import RolloutSampler
from rllm_serving.announcement import EndedError, announced_url
from rllm_serving.child_process import ChildProcess

MODEL = "policy"
"""What clients are told that the model is called."""
SECONDS_TO_START = 120.0
SECONDS_TO_END = 10.0
SECONDS_TO_BE_GONE = 1.0
LOG_LINES = 15


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a gateway listens and stores."""

    store: str
    host: str
    port: int


@asynccontextmanager
async def gateway_process(
    renderer: Renderer,
    place: Place,
    directory: Path,
    deployment: Deployment | None = None,
    make_sampler: Callable[[str], RolloutSampler] | None = None,
) -> AsyncIterator[tuple[TrainerLink, str]]:
    """A gateway that is linked to this process, and its URL. It ends with the context, or with this process.

    Args:
        renderer: of the model; made by `make_renderer`.
        place: where it listens and stores.
        directory: for its log and its files; they may be deleted afterwards.
        deployment: how it opens sessions. None if the trainer opens them.
        make_sampler: makes the sampler of a session that the gateway has opened.

    Raises:
        ConfigError: no other process can load the renderer.
        BackendError: it does not start.
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
            store=place.store,
            host=place.host,
            port=place.port,
            announcement=str(announcement),
            model=MODEL,
            deployment=None if deployment is None else asdict(deployment),
        )
        program = [sys.executable, "-m", "rllm_gateway.child", settings.as_argument()]
        process = ChildProcess.spawn(program, directory / "gateway.log", _environment(), [theirs.fileno()])
    link: TrainerLink | None = None
    try:
        link = TrainerLink(*await asyncio.open_connection(sock=ours), make_sampler, lambda: _last_words(process))
        yield link, await _answering(announcement, process)
    finally:
        if link is not None:
            await link.close()
        await process.end(SECONDS_TO_END)


@asynccontextmanager
async def running_gateway(
    renderer: Renderer, sdk: SdkSection, directory: Path
) -> AsyncIterator[tuple[TrainerLink, str]]:
    """The link to a gateway that runs already, ``rllm gateway serve``, and its URL. It continues after the context.

    Args:
        renderer: of the model; made by `make_renderer`.
        sdk: where the gateway listens, and its token; null: the token of this user's file.
        directory: for the renderer, which the gateway reads from there.

    Raises:
        ConfigError: no other process can load the renderer, or the token cannot be read.
        BackendError: there is no gateway, or it refuses the run.
    """
    from rllm_backend_kit.portable_renderer import save_renderer
    from rllm_gateway.attaching import attach

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
    """Its URL."""
    try:
        return await announced_url(announcement, process, SECONDS_TO_START)
    except (EndedError, TimeoutError) as error:
        raise BackendError(
            "process-not-started",
            "The gateway does not start. The end of its log is below.",
            "Its settings are `rllm.sdk.store` and `rllm.sdk.proxy`, those of `rllm gateway serve` its options.",
            _last_words(process),
        ) from error


def _last_words(process: ChildProcess) -> str:
    lines = process.last_lines(LOG_LINES) or ["(its log is empty)"]
    # Its connections close before it can be asked how it ended.
    code = process.exit_code_within(SECONDS_TO_BE_GONE)
    if code is not None and code < 0:
        lines.append(f"(it was killed by {signal.Signals(-code).name})")
    return "\n".join(lines)


def _environment() -> dict[str, str]:
    """Tokenizers of Hugging Face start threads and warn of forks; the gateway renders one prompt at a time."""
    return {"TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "false"), "HF_HUB_OFFLINE": "1"}
