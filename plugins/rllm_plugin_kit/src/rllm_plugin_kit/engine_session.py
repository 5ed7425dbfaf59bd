"""A started engine under test, with methods for synchronous code."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rllm_core.contracts.engine import Completion, EngineSetup, HostedEngine, SamplingParams
from rllm_plugin_kit.process_state import read_process_state
from rllm_plugin_kit.small_model import MAX_CONTEXT, SmallModel, make_renderer, save_without_weights
from rllm_plugin_kit.started import StartedSession

CONCURRENCY = 16


class Request(NamedTuple):
    """A prompt, its sampling parameters and its session."""

    prompt: Sequence[int]
    sampling: SamplingParams
    session: str


class EngineSession(StartedSession):
    """One engine from start to close, with the weights of `model`."""

    def __init__(self, make: Callable[[], HostedEngine]) -> None:
        self._make = make
        self.model = SmallModel(0)
        self.version = 0
        make_renderer()  # Import its modules first, so that the comparison does not blame the engine for them.
        self.before = read_process_state()
        self.engine = make()
        super().__init__(self.engine)
        try:
            with tempfile.TemporaryDirectory() as directory:
                save_without_weights(Path(directory))
                self.ask(self.engine.start(_setup(Path(directory))))
            self.load(self.model, 0)
        except BaseException:
            self.close()
            raise

    def start_copy(self) -> EngineSession:
        """A new engine with the same options."""
        return EngineSession(self._make)

    def load(self, model: SmallModel, version: int) -> None:
        """Load these weights into the engine, then overwrite the caller's copy."""
        weights = model.weights()
        self.ask(self.engine.load_weights(((name, tensor) for name, tensor in weights.items()), version))
        for tensor in weights.values():
            tensor.zero_()
        self.model, self.version = model, version

    def generate(self, *requests: Request) -> list[Completion]:
        """The completions of requests that are made at once."""

        async def at_once() -> list[Completion]:
            return list(await asyncio.gather(*(self.call(request) for request in requests)))

        return self.ask(at_once())

    async def call(self, request: Request) -> Completion:
        """One completion."""
        return await self.engine.generate(request.prompt, request.sampling, session=request.session)

    def end(self, *requests: Request) -> None:
        """End the sessions of requests."""

        async def one_by_one() -> None:
            for request in requests:
                await self.engine.end_session(request.session)

        self.ask(one_by_one())


def _setup(directory: Path) -> EngineSetup:
    return EngineSetup(
        directory=directory,
        renderer=make_renderer(),
        max_context=MAX_CONTEXT,
        max_concurrency=CONCURRENCY,
        kv_cache_bytes=1 << 26,
        dtype="float32",
    )
