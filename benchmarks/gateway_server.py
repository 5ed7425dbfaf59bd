"""The process that `benchmarks/gateway.py` measures: ``gateway_server.py KIND DESCRIPTOR STORE``.

KIND is one of these:

- ``gateway``
- ``pass_through``, which reads, samples and answers
- ``stored_pass_through``, which commits a row of the size of a call to the same store before it answers
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from numpy.typing import NDArray
from starlette.types import ASGIApp, Receive, Scope, Send

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.data.messages import Message, Response, Tool
from rllm_gateway.calls import CallRow, CallStore, SessionRow
from rllm_gateway.serving.app import create_app
from rllm_gateway.serving.endpoint import read_body
from rllm_gateway.serving.gateway import Gateway
from rllm_gateway.sessions.link import AttachedPolicy, LinkPolicy
from rllm_serving.http_server import HttpServer
from rllm_serving.listening import listen, url_of

NEW_TOKENS = 200
WORD = 4
"""Bytes of text per token."""


class Words:
    """A cheap renderer: four bytes of text are a token."""

    stop_ids = frozenset((-1,))
    reasoning_ids = None

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> NDArray[np.int32]:
        said = "".join(f"<{message['role']}>{message['content']}" for message in messages).encode()
        return np.frombuffer(said + b" " * (-len(said) % WORD), np.int32)

    def bridge(
        self, prompt_ids: Any, response_ids: Any, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> NDArray[np.int32]:
        return np.concatenate((prompt_ids, response_ids, self.prompt(messages)))

    def response_ids(self, text: str) -> NDArray[np.int32]:
        return self.prompt([{"role": "", "content": text}])

    def text(self, token_ids: Any) -> str:
        return np.asarray(token_ids, np.int32).tobytes().decode(errors="replace")

    def parse(self, prompt_ids: Any, response_ids: Any, tools: Sequence[Tool] = ()) -> Response:
        text = self.text(response_ids)
        return Response(text=text, content=text)


class PassThrough:
    """A server that reads a request, samples and answers. It has no key, no translation and no default store."""

    def __init__(self, policy: LinkPolicy, store: CallStore | None = None) -> None:
        self._policy = policy
        self._store = store
        self._calls = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        self._calls += 1
        ids = np.frombuffer(body + b" " * (-len(body) % WORD), np.int32)
        names = {"session": "s", "call": str(self._calls), "branch": "b"}
        completion = await self._policy.sample(ids, SamplingParams(max_tokens=400), **names)
        said = completion.token_ids.tobytes()
        if self._store is not None:
            await self._store.add(row_of(self._calls, ids[:NEW_TOKENS], completion))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(said)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": said})


def row_of(number: int, new_ids: NDArray[np.int32], completion: Completion) -> CallRow:
    """Return a row as the gateway stores it for a later turn: the new part of the prompt, and the response."""
    said = {"role": "assistant", "content": completion.token_ids.tobytes().decode()}
    return CallRow(
        id=str(number),
        session="s",
        role="agent",
        parent=None,
        prompt_digest=f"{number:032x}",
        new_ids=np.array(new_ids, np.int32),
        response_ids=completion.token_ids,
        logprobs=completion.logprobs,
        weight_version=0,
        finish_reason="stop",
        started=0.0,
        seconds=0.0,
        parameters={},
        messages=[{"role": "user", "content": "z" * WORD * NEW_TOKENS}],
        response=said,
        sent={"model": "m"},
        outcomes={"model": "overruled"},
    )


async def serve(kind: str, descriptor: int, store: Path) -> None:
    link = socket.socket(fileno=descriptor)
    link.setblocking(False)
    listening = listen()
    calls = CallStore.open(store)
    gateway = Gateway(calls, url_of(listening))
    policy = LinkPolicy(*await asyncio.open_connection(sock=link), gateway)
    gateway.attach(AttachedPolicy(policy=policy, renderer=Words(), model="m"))
    session = SessionRow(id="s", run="r", rollout="a", retry=0, metadata={}, key_hash="", opened=0.0)
    if kind == "stored_pass_through":
        await calls.add(session)
    apps: dict[str, Callable[[], ASGIApp]] = {
        "gateway": lambda: create_app(gateway),
        "pass_through": lambda: PassThrough(policy),
        "stored_pass_through": lambda: PassThrough(policy, calls),
    }
    server = HttpServer(apps[kind](), listening)
    await server.start()
    print(listening.getsockname()[1], flush=True)
    await policy.serve()
    await server.stop()
    gateway.flush()
    calls.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
