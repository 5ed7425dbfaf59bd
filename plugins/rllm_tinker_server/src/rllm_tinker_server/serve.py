"""Run the server: load the model, start the threads that train and sample, and answer requests until a signal."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from rllm_core.errors import ConfigError
from rllm_core.seeding import derive_seed
from rllm_local.model import LoadedModel, load_model
from rllm_local.model_name import directory_of
from rllm_local.settings import TrainedModelSection
from rllm_serving.http_server import HttpServer, Stop, serve_until
from rllm_serving.listening import LOOPBACK, announce, listen, url_of
from rllm_tinker_server.app import check_keys, create_app
from rllm_tinker_server.host import Host
from rllm_tinker_server.limits import TinkerLimits
from rllm_tinker_server.samplers import Samplers
from rllm_tinker_server.service import Service

GIB = 1 << 30
WORKER = "rllm-tinker-worker"
STOPPING = 10.0
"""Seconds that the worker threads have to end what they execute when the server stops."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The served model, and its share of this machine."""

    model: str
    """`tiny`, a directory or a hub id."""
    checkpoints: Path
    names: tuple[str, ...] = ()
    """Names of the model for clients. Empty means `default_names`."""
    max_context: int | None = None
    threads: int = 1
    """CPU threads of torch, for each worker thread."""
    device: str = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0
    """Seed of the weights of `tiny`. They equal the weights in a run of the backend `local` with this trainer.seed."""
    kv_cache_gib: float = 1.0
    """Size of the cache for each set of weights in use for sampling."""
    max_concurrency: int = 512
    """Maximum sequences of one set of weights in a forward pass."""
    max_tokens_per_microbatch: int = 4096
    """Maximum padded tokens per forward and backward pass. With `tiny`, 16384 used 400 MB more and was not faster."""
    max_merged: int = 2
    """Maximum sets of weights ready for sampling."""
    limits: TinkerLimits = field(default_factory=TinkerLimits)


def default_names(model: str) -> tuple[str, ...]:
    """Return the model's name or path, and for a directory also its last part."""
    directory = directory_of(model) if model != "tiny" else None
    if directory is None:
        return (model,)
    return tuple(dict.fromkeys((model, directory.resolve().name)))


@contextmanager
def open_service(options: ModelOptions) -> Iterator[Service]:
    """Load the model and serve it, but for HTTP. Afterwards the worker threads have `STOPPING` seconds to end.

    Raises:
        ConfigError: the model cannot be loaded, or the directory for checkpoints cannot be used.
    """
    # Two, so that samples are answered while a training request runs.
    training, sampling = _worker("training", options.threads), _worker("sampling", options.threads)
    try:
        yield training.submit(_build, options, training, sampling).result()
    finally:
        until = time.monotonic() + STOPPING
        for stopping in [_shut_down(executor) for executor in (training, sampling)]:
            stopping.join(max(0.0, until - time.monotonic()))


def is_worker_busy() -> bool:
    """True if a worker thread is still running."""
    return any(thread.name.startswith(WORKER) for thread in threading.enumerate())


def _worker(what: str, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(
        max_workers=1,
        thread_name_prefix=f"{WORKER}-{what}",
        initializer=torch.set_num_threads,
        initargs=(threads,),
    )


def _shut_down(executor: ThreadPoolExecutor) -> threading.Thread:
    """A thread that ends when the executor has."""
    stopping = threading.Thread(target=executor.shutdown, kwargs={"cancel_futures": True}, daemon=True)
    stopping.start()
    return stopping


def _build(options: ModelOptions, training: ThreadPoolExecutor, sampling: ThreadPoolExecutor) -> Service:
    names = options.names or default_names(options.model)
    section = TrainedModelSection(name=options.model, device=options.device, dtype=options.dtype)
    seed = derive_seed(options.seed, "model")
    loaded = load_model(section, seed)
    try:
        options.checkpoints.mkdir(parents=True, exist_ok=True)
        tokenizer = _tokenizer_of(options, loaded)
        host = Host(
            loaded,
            name=names[0],
            tokenizer=tokenizer,
            seed=seed,
            max_context=options.max_context,
            max_tokens_per_microbatch=options.max_tokens_per_microbatch,
        )
        samplers = Samplers(
            host,
            sampling,
            kv_cache_bytes=int(options.kv_cache_gib * GIB),
            max_concurrency=options.max_concurrency,
            max_merged=options.max_merged,
        )
        return Service(host, samplers, training, options.checkpoints, names=names, limits=options.limits)
    except OSError as error:
        raise ConfigError(
            "not-writable",
            f"The directory for checkpoints, {options.checkpoints}, cannot be used: {error.strerror or error}.",
            "Choose a writable directory with --checkpoints.",
        ) from error


def _save_tokenizer(tokenizer: Any, directory: Path) -> None:
    """Save the tokenizer atomically if it is not saved yet. Other servers' clients may read the directory meanwhile."""
    if directory.exists():
        return
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as temporary:
        tokenizer.save_pretrained(Path(temporary) / directory.name)
        try:
            (Path(temporary) / directory.name).rename(directory)
        except OSError:
            # Another server may have been faster.
            if not directory.exists():
                raise


def _tokenizer_of(options: ModelOptions, loaded: LoadedModel) -> str:
    """Return the directory or hub id from which local clients load the tokenizer. Save it first for `tiny`."""
    if options.model == "tiny":
        directory = (options.checkpoints / "tokenizer-of-tiny").resolve()
        _save_tokenizer(loaded.tokenizer, directory)
        return str(directory)
    directory_or_none = directory_of(options.model)
    return options.model if directory_or_none is None else str(directory_or_none.resolve())


@dataclass(frozen=True, kw_only=True)
class TinkerServeOptions:
    """Address of the server, and conditions to stop."""

    host: str = LOOPBACK
    port: int = 0
    """Port. 0 means any free port."""
    keys: tuple[str, ...] = ()
    """Keys that clients can send as X-API-Key. Without any, each key works, and only this machine can connect."""
    announce: Path | None = None
    """File to write the server's address to when it listens, for the program that started it."""
    end_with_stdin: bool = False
    """Stop when standard input is closed. This happens when the parent process dies, because it has the other end."""


def serve(service: Service, options: TinkerServeOptions, listening: socket.socket, ready: Callable[[str], None]) -> int:
    """Serve until SIGTERM, SIGINT or the end of standard input, and return the exit code.

    `listening` comes from `listen_for`. `ready` receives the URL when the server answers requests. At the end, the
    server does not wait for its worker threads.
    """
    url = url_of(listening)

    def on_ready() -> None:
        if options.announce is not None:
            announce(options.announce, listening)
        ready(url)

    async def main() -> int:
        stop = Stop()
        if options.end_with_stdin:
            stop.set_with_parent()
        await serve_service(service, options, listening, on_ready, stop.event)
        return stop.exit_code

    return asyncio.run(main())


def listen_for(options: TinkerServeOptions) -> socket.socket:
    """A bound socket. Raises ConfigError: other machines could reach a server without a key, or the port is taken."""
    check_keys(options.host, options.keys)
    return listen(options.host, options.port)


async def serve_service(
    service: Service,
    options: TinkerServeOptions,
    listening: socket.socket,
    ready: Callable[[], None],
    stop: asyncio.Event,
) -> None:
    """Serve until `stop` is set. `ready` is called when the server answers requests."""
    server = HttpServer(
        create_app(service, options.keys), listening, lifespan="on", read_seconds=service.limits.read_seconds
    )

    def before_stopping() -> None:
        # Requests for pending results would be held for a while, and connections with them.
        service.futures.close()

    await serve_until(stop, server, ready, before_stopping)
