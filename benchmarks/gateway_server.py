"""The process that `benchmarks/gateway.py` measures: ``gateway_server.py gateway|pass_through DESCRIPTOR STORE``."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from numpy.typing import NDArray
from starlette.types import Receive, Scope, Send

from rllm_core.data.messages import Message, Reply, Tool
from rllm_gateway.app import create_app
from rllm_gateway.gateway import Gateway
from rllm_gateway.http import read_body
from rllm_gateway.link_policy import LinkPolicy
from rllm_gateway.policy import AttachedPolicy
from rllm_record.calls import CallStore
from rllm_serving.http_server import HttpServer
from rllm_serving.listening import listen, url_of

WORD = 4
"""Bytes of text per token."""


class Words:
    """A renderer that costs next to nothing: four bytes of text are a token."""

    stop_ids = frozenset((-1,))
    reasoning_ids = None

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> NDArray[np.int32]:
        said = "".join(f"<{message['role']}>{message['content']}" for message in messages).encode()
        return np.frombuffer(said + b" " * (-len(said) % WORD), np.int32)

    def bridge(
        self, prompt_ids: Any, reply_ids: Any, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> NDArray[np.int32]:
        return np.concatenate((prompt_ids, reply_ids, self.prompt(messages)))

    def reply_ids(self, text: str) -> NDArray[np.int32]:
        return self.prompt([{"role": "", "content": text}])

    def text(self, token_ids: Any) -> str:
        return np.asarray(token_ids, np.int32).tobytes().decode(errors="replace")

    def parse(self, prompt_ids: Any, reply_ids: Any, tools: Sequence[Tool] = ()) -> Reply:
        text = self.text(reply_ids)
        return Reply(text=text, content=text)


class PassThrough:
    """Reads a request, samples, answers: no key, no translation, no store."""

    def __init__(self, policy: LinkPolicy) -> None:
        self._policy = policy
        self._calls = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        self._calls += 1
        ids = np.frombuffer(body + b" " * (-len(body) % WORD), np.int32)
        completion = await self._policy.sample(
            session="s", call=str(self._calls), branch="b", prompt_ids=ids, max_tokens=400, stop=()
        )
        said = completion.token_ids.tobytes()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(said)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": said})


async def serve(kind: str, descriptor: int, store: Path) -> None:
    link = socket.socket(fileno=descriptor)
    link.setblocking(False)
    policy = LinkPolicy(*await asyncio.open_connection(sock=link))
    listening = listen()
    calls = CallStore.open(store)
    gateway = Gateway(calls, url_of(listening))
    gateway.attach(AttachedPolicy(policy=policy, renderer=Words(), model="m"))
    server = HttpServer(create_app(gateway) if kind == "gateway" else PassThrough(policy), listening)
    await server.start()
    print(listening.getsockname()[1], flush=True)
    await policy.serve(gateway)
    await server.stop()
    gateway.flush()
    calls.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
