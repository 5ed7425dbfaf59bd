"""The server with a stand-in for its torch half, on real HTTP, and the real client."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tinker_in_process import RunningServer, running_server

from rllm_tinker_server.limits import TinkerLimits
from rllm_tinker_server.messages import (
    AdamStep,
    BaseModelInfo,
    ForwardBackward,
    ForwardBackwardResult,
    LoraSpec,
    RequestError,
    SampledSequence,
    SampleSettings,
    Scores,
    ScoreSettings,
    TopTokens,
)
from rllm_tinker_server.serve import TinkerServeOptions
from rllm_tinker_server.service import Service

os.environ["TINKER_TELEMETRY"] = "0"

KEY = "tml-test"
DEADLINE = 100.0
"""Seconds after which something hangs, however busy the machine is."""


@dataclass
class FakeModel:
    spec: LoraSpec
    value: float = 0.0
    gradient: float = 0.0
    steps: int = 0


@dataclass
class FakeHost:
    """A model is one number; its gradient is the number of target tokens."""

    base: BaseModelInfo
    models: dict[str, FakeModel] = field(default_factory=dict)
    calls: list[tuple[str, int]] = field(default_factory=list)
    """Operations, and of forward_backward the first target token."""
    gate: threading.Event = field(default_factory=threading.Event)
    disk_is_full: bool = False

    def create(self, model_id: str, spec: LoraSpec) -> None:
        if spec.rank > 64:
            raise RequestError("The rank is above 64.")
        self.models[model_id] = FakeModel(spec)

    def forward_backward(self, model_id: str, request: ForwardBackward) -> ForwardBackwardResult:
        assert self.gate.wait(DEADLINE)
        if request.loss != "cross_entropy":
            raise RequestError(f"There is no loss {request.loss!r}.")
        self.calls.append(("forward_backward", int(request.examples[0].targets.flat[0])))
        total = float(sum(example.targets.size for example in request.examples))
        if not request.forward_only:
            self.models[model_id].gradient += total
        logprobs = tuple(-example.targets.astype(np.float32) for example in request.examples)
        return ForwardBackwardResult(logprobs=logprobs, metrics={"loss:sum": total})

    def optim_step(self, model_id: str, step: AdamStep) -> dict[str, float]:
        self.calls.append(("optim_step", 0))
        model = self.models[model_id]
        model.value, model.gradient, model.steps = model.value + model.gradient, 0.0, model.steps + 1
        return {"value": model.value, "steps": float(model.steps), "nothing": float("nan")}

    def save_state(self, model_id: str, directory: Path, *, optimizer: bool) -> None:
        model = self.models[model_id]
        (directory / "half").write_text("written")
        if self.disk_is_full:
            raise OSError(28, "No space left on device")
        steps = model.steps if optimizer else None
        (directory / "model.json").write_text(
            json.dumps({"value": model.value, "steps": steps, "rank": model.spec.rank})
        )

    def load_state(self, model_id: str, directory: Path, *, optimizer: bool) -> None:
        found = json.loads((directory / "model.json").read_text())
        model = FakeModel(LoraSpec(rank=found["rank"]), value=found["value"])
        model.steps = found["steps"] if optimizer else 0
        self.models[model_id] = model

    def weights(self, model_id: str) -> float:
        return self.models[model_id].value

    def load_weights(self, directory: Path) -> float:
        return float(json.loads((directory / "model.json").read_text())["value"])

    def release(self, model_id: str) -> None:
        self.models.pop(model_id, None)


class FakeSamplers:
    """A sample repeats the weights' number; it waits for the host's gate where asked for 13 tokens."""

    def __init__(self, host: FakeHost, executor: ThreadPoolExecutor) -> None:
        self.host, self.executor = host, executor
        self.asked = 0
        self.scored = 0
        self.forgotten: list[Any] = []

    async def sample(
        self, weights: Any, prompts: Any, settings: SampleSettings, *, client: str
    ) -> list[SampledSequence]:
        import asyncio

        self.asked += 1
        if settings.max_tokens == 13:
            await asyncio.get_running_loop().run_in_executor(self.executor, self.host.gate.wait, DEADLINE)
        number = int(weights or 0)
        tokens = np.full(settings.max_tokens, number, np.int32)
        logprobs = np.full(settings.max_tokens, -0.5, np.float32)
        return [SampledSequence(tokens=tokens, logprobs=logprobs, stop_reason="length") for _ in prompts]

    async def score(self, weights: Any, given: Any, settings: ScoreSettings | None = None, *, client: str) -> Scores:
        """The log-prob of a token is its negative. The likeliest tokens' log-probs are divided by the temperature."""
        self.scored += 1
        settings = settings or ScoreSettings()
        top, temperature = settings.top, settings.temperature
        logprobs = np.array([np.nan, *(-given[1:].astype(np.float32))], np.float32)
        found = TopTokens(
            tokens=np.tile(np.arange(top, dtype=np.int32), (len(given), 1)),
            logprobs=np.where(np.isnan(logprobs)[:, None], np.nan, -np.arange(1, top + 1) / temperature).astype(
                np.float32
            ),
        )
        drawn = np.full((len(given) - 1, settings.draws), 3, np.int32)
        return Scores(
            logprobs=logprobs,
            top=found if top else None,
            targets=None if settings.targets is None else -settings.targets.clip(0).astype(np.float32),
            draws=TopTokens(tokens=drawn, logprobs=-drawn.astype(np.float32)) if settings.draws else None,
        )

    def forget(self, weights: Any) -> None:
        self.forgotten.append(weights)


@dataclass(frozen=True)
class Server:
    """A running server, its stand-in, and ways to talk to it."""

    running: RunningServer
    host: FakeHost
    samplers: FakeSamplers
    raw: httpx.Client
    stack: ExitStack
    """Closes the clients at the end."""

    @property
    def url(self) -> str:
        return self.running.url

    def with_key(self, key: str) -> Server:
        """The server as a client with a different key sees it."""
        raw = httpx.Client(base_url=self.url, headers={"X-API-Key": key}, timeout=DEADLINE)
        return replace(self, raw=self.stack.enter_context(raw))

    def post(self, route: str, **content: Any) -> httpx.Response:
        return self.raw.post(f"/api/v1/{route}", json=content)

    def get_request_id(self, route: str, **content: Any) -> str:
        """The request id of an accepted request."""
        response = self.post(route, **content)
        assert response.status_code == 200, response.text
        return str(response.json()["request_id"])

    def result(self, request_id: str) -> httpx.Response:
        return self.post("retrieve_future", request_id=request_id)

    def session(self) -> str:
        return str(self.post("create_session", tags=[], user_metadata={}, sdk_version="0.38.0").json()["session_id"])

    def model(self, session_id: str, number: int = 0) -> str:
        """The id of a new LoRA model."""
        content = {"session_id": session_id, "model_seq_id": number, "base_model": "fake", "lora_config": {"rank": 4}}
        return str(self.result(self.get_request_id("create_model", **content)).json()["model_id"])

    def step(self, model_id: str, number: int) -> str:
        return self.get_request_id("optim_step", model_id=model_id, seq_id=number, adam_params={"learning_rate": 0.1})


Start = Callable[..., Server]
Connect = Callable[..., Any]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start a server: ``start(*keys, checkpoints=…, **limits)``."""
    with ExitStack() as stack:

        def begin(*keys: str, checkpoints: Path | None = None, **limits: Any) -> Server:
            executor = ThreadPoolExecutor(max_workers=1)
            stack.callback(executor.shutdown, cancel_futures=True)
            base = BaseModelInfo(
                name="fake", tokenizer="fake-tokenizer", max_context=64, vocabulary=100, layers=1, dtype="float32"
            )
            host = FakeHost(base)
            host.gate.set()
            samplers = FakeSamplers(host, executor)
            directory = checkpoints or tmp_path_factory.mktemp("checkpoints")
            service = Service(
                host, samplers, executor, directory, names=("fake", "Big/Name"), limits=TinkerLimits(**limits)
            )
            running = stack.enter_context(running_server(service, TinkerServeOptions(keys=keys)))
            stack.callback(host.gate.set)
            raw = httpx.Client(base_url=running.url, headers={"X-API-Key": keys[0] if keys else KEY}, timeout=DEADLINE)
            return Server(running, host, samplers, stack.enter_context(raw), stack)

        yield begin


@pytest.fixture(scope="module")
def server(start: Start) -> Server:
    """One of default limits, shared by the tests of a module."""
    return start()


@pytest.fixture
def connect() -> Iterator[Callable[..., Any]]:
    """The real client: ``connect(server)``."""
    import tinker

    clients: list[Any] = []

    def open_client(server: Server, key: str = KEY) -> Any:
        clients.append(tinker.ServiceClient(base_url=server.url, api_key=key))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close("success").result(DEADLINE)
