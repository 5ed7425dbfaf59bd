"""A gateway on loopback with a scripted policy."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tool_tokenizer import STOP, ToolTokenizer

from rllm_core.contracts.engine import Completion, SamplingParams, TopTokens
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_gateway.apis.fields import Rules
from rllm_gateway.calls import CallStore
from rllm_gateway.serving.app import create_app
from rllm_gateway.serving.gateway import Gateway, GatewayLimits
from rllm_gateway.sessions.link import AttachedPolicy, OpenedSession, PolicyError, SessionSpec, SessionTrace
from rllm_serving.http_server import HttpServer
from rllm_serving.listening import listen, url_of

T = TypeVar("T")
CALL = '<call>{"name": "look_up", "arguments": {"word": "proof"}}</call>'
"""Return a tool call as the model writes it."""
MAX_CONTEXT = 5000
DEADLINE = 60


@dataclass(frozen=True, eq=False)
class Sampled:
    """A call that the policy has answered."""

    session: str
    call: str
    branch: str
    prompt_ids: NDArray[np.int32]
    completion: Completion
    max_tokens: int

    @property
    def prompt(self) -> str:
        return "".join(map(chr, self.prompt_ids))


@dataclass(eq=False)
class Scripted:
    """A policy of characters. A response is cut at stop strings and ends with the stop token."""

    response: Callable[[str], str] = lambda prompt: "hello"
    calls: list[Sampled] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    """Calls wait for this event."""
    held_back: int | None = None
    """Number of last tokens that are sampled after `may_end` is set. The others are streamed. None: no streaming."""
    may_end: threading.Event = field(default_factory=threading.Event)
    failure: PolicyError | None = None
    """An error that is raised instead of the last tokens."""
    max_context: int = MAX_CONTEXT
    weight_version: int = 3
    options: frozenset[str] = frozenset()
    """Supported options: ``json_schema``, which its responses must match, and ``top_logprobs``."""
    schemas: list[Any] = field(default_factory=list)
    """The received schemas."""

    def __post_init__(self) -> None:
        self.go.set()

    def reset(self) -> None:
        """Forget all calls and settings. Calls that wait end."""
        self.go.set()
        self.may_end.set()
        vars(self).update(vars(Scripted()))

    async def sample(
        self, prompt_ids: NDArray[np.int32], sampling: SamplingParams, *, session: str, call: str, branch: str
    ) -> Completion:
        json_schema, top_logprobs, on_tokens = sampling.json_schema, sampling.top_logprobs, sampling.on_tokens
        demanded = {name for name, value in (("json_schema", json_schema), ("top_logprobs", top_logprobs)) if value}
        if demanded - self.options:
            raise PolicyError("This engine cannot do that.", "unsupported")
        if json_schema is not None:
            self.schemas.append(json.loads(json_schema))
        if len(prompt_ids) >= self.max_context:
            raise PolicyError(f"The prompt has {len(prompt_ids)} tokens, and the model has room for fewer.", "too_long")
        self.asked.set()
        try:
            while not self.go.is_set():
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        text = self.response("".join(map(chr, prompt_ids)))
        completion = completion_of(text, sampling.max_tokens, sampling.stop, self.weight_version)
        if on_tokens is not None and self.held_back is not None:
            for token in completion.token_ids[: len(completion.token_ids) - self.held_back]:
                on_tokens(np.array([token], np.int32))
            while not self.may_end.is_set():
                await asyncio.sleep(0.001)
            if self.failure is not None:
                raise self.failure
        if top_logprobs:
            ids = np.tile(completion.token_ids[:, None], (1, top_logprobs))
            completion = replace(completion, top=TopTokens(ids, np.full(ids.shape, -2.0, np.float32)))
        self.calls.append(Sampled(session, call, branch, prompt_ids, completion, sampling.max_tokens))
        return completion


def completion_of(text: str, max_tokens: int, stop: tuple[str, ...], weight_version: int = 3) -> Completion:
    ends = [text.find(each) + len(each) for each in stop if each in text]
    tokens = [ord(character) for character in text[: min(ends, default=len(text))]] + ([] if ends else [STOP])
    ids = np.array(tokens[:max_tokens], np.int32)
    whole = len(ids) == len(tokens)
    logprobs = np.linspace(-1.0, -0.5, len(ids), dtype=np.float32)
    return Completion(
        token_ids=ids, logprobs=logprobs, finish_reason="stop" if whole else "length", weight_version=weight_version
    )


@dataclass(eq=False)
class World:
    """A running gateway, its store and its policy."""

    gateway: Gateway
    policy: Scripted
    store: CallStore
    url: str
    loop: asyncio.AbstractEventLoop
    opened: int = 0

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the gateway's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(DEADLINE)

    def open(self, **changes: Any) -> OpenedSession:
        spec = {"id": f"task-{self.opened}:0", "run": "r", "rollout": "task:0", "max_tokens": 400} | changes
        self.opened += 1
        return self.run(self.gateway.open_session(SessionSpec(**spec)))

    def close(self, session: OpenedSession) -> SessionTrace:
        return self.run(self.gateway.close_session(session.id))


def renderer() -> TemplateRenderer:
    return TemplateRenderer(ToolTokenizer(), [STOP])


@contextmanager
def running(directory: Path, limits: GatewayLimits | None = None, attached: Any = renderer) -> Iterator[World]:
    """Yield a gateway until the end of the context.

    Args:
        directory: directory of its store.
        limits: its limits.
        attached: makes the renderer of the policy; None: no policy is attached.
    """
    store = CallStore.open(directory / "calls.db")
    listening = listen()
    url, policy = url_of(listening), Scripted()
    ready, worlds, stop = threading.Event(), list[World](), asyncio.Event()

    async def main() -> None:
        gateway = Gateway(store, url, limits)
        if attached is not None:
            gateway.attach(AttachedPolicy(policy=policy, renderer=attached(), model="tiny"))
        server = HttpServer(create_app(gateway), listening)
        await server.start()
        worlds.append(World(gateway, policy, store, url, asyncio.get_running_loop()))
        ready.set()
        await stop.wait()
        await server.stop()
        gateway.flush()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        assert ready.wait(DEADLINE)
        yield worlds[0]
    finally:
        worlds[0].policy.go.set()
        worlds[0].policy.may_end.set()
        worlds[0].loop.call_soon_threadsafe(stop.set)
        thread.join()
        store.close()


def assert_one_class(known: Iterable[str], rules: Rules) -> None:
    """Check that each parameter of a request is in exactly one list: used, overruled, ignored, refused or stored."""
    classes = (rules.honored, rules.overruled, rules.ignored, rules.refused, rules.held)
    assert {name: sum(name in each for each in classes) for name in known} == dict.fromkeys(known, 1)
