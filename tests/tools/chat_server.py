"""Servers of OpenAI's chat-completions API on this machine: a scripted one, and one around a local model."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from rllm.config.compose import compose
from rllm.config.layers import layer_from_keys
from rllm.evaluation.session import open_engine
from rllm.planning.planner import make_plan
from rllm_core.contracts.engine import SamplingParams
from rllm_core.plugins.registry import Registry

MODEL = "small"


@contextmanager
def serving(app: Starlette) -> Iterator[str]:
    """Serve on a free port of the loopback interface. Yields the address, up to and with ``/v1``."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join(timeout=30)


def completion(content: str | None, tokens: int = 1, finish_reason: str = "stop", **message: Any) -> dict[str, Any]:
    """Return the body of an answer."""
    said = {"role": "assistant", "content": content, **message}
    return {
        "choices": [{"index": 0, "message": said, "finish_reason": finish_reason}],
        "usage": {"completion_tokens": tokens},
    }


class Scripted:
    """Answers requests in order. An answer is a body, or a status with text and headers. The last answer repeats."""

    def __init__(self, *answers: Any, models: Sequence[str] = (MODEL,)) -> None:
        self.answers = list(answers)
        self.models: Any = [{"id": name} for name in models]
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.most_at_once = 0
        self._under_way = 0

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._list),
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
            ]
        )

    async def _list(self, request: Request) -> Response:
        self.headers.append(dict(request.headers))
        return _response(self.models if isinstance(self.models, tuple) else {"data": self.models})

    async def _complete(self, request: Request) -> Response:
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        self.requests.append(await request.json())
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self._under_way -= 1
        return _response(answer)


def _response(answer: Any) -> Response:
    if isinstance(answer, dict):
        return JSONResponse(answer)
    status, text, *headers = answer
    return PlainTextResponse(text, status_code=status, headers=headers[0] if headers else None)


def model_app(directory: Path) -> Starlette:
    """The model in a directory, sampled by the backend `local`."""
    state: dict[str, Any] = {}

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        registry = Registry.load()
        settings = {"rllm.backend": "local", "rllm.env.name": "sum", "model.name": str(directory)}
        plan = make_plan(compose(registry, [layer_from_keys(settings, "the test")]), registry)
        async with open_engine(plan) as engine:
            state["engine"] = engine
            yield

    async def complete(request: Request) -> Response:
        body, engine = await request.json(), state["engine"]
        prompt = engine.renderer.prompt(body["messages"])
        sampling = SamplingParams(
            max_tokens=body["max_tokens"], temperature=body["temperature"], seed=body.get("seed", 0)
        )
        sampled = await engine.generate(prompt, sampling, session=f"{len(prompt)}-{id(request)}")
        content = engine.renderer.parse(prompt, sampled.token_ids).content
        return JSONResponse(completion(content, len(sampled.token_ids), sampled.finish_reason))

    async def models(request: Request) -> Response:
        return JSONResponse({"data": [{"id": MODEL}]})

    routes = [Route("/v1/models", models), Route("/v1/chat/completions", complete, methods=["POST"])]
    return Starlette(routes=routes, lifespan=lifespan)


Make = Callable[..., Scripted]
