"""A judge on this machine: a real server that answers as it is told, and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rllm.tasks.judge import Judge
from rllm.tasks.judge_options import JudgeParams
from rllm_core.contracts.reward import Score

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Server:
    """Gives `answers` in turn, and the last one again and again."""

    url: str
    answers: list[Answer]
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Content of each request."""
    headers: list[dict[str, str]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    """For answers that wait: the test is over."""


def says(text: str) -> Answer:
    return answers(200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}))


def answers(status: int, body: str, **headers: str) -> Answer:
    def write(handler: BaseHTTPRequestHandler) -> None:
        data = body.encode()
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return write


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said.asked.append(body | {"path": self.path})
            said.headers.append(dict(self.headers))
            answer = said.answers.pop(0) if len(said.answers) > 1 else said.answers[0]
            with suppress(ConnectionError):  # the reward may have stopped waiting
                answer(self)

        def log_message(self, *arguments: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    said = Server(url=f"http://127.0.0.1:{listening.server_port}/v1", answers=[says("yes")])
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield said
    said.ended.set()
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.fixture
def judge(server: Server) -> Callable[..., Judge]:
    """A judge that asks this server; waits between tries are short."""

    def make(**options: Any) -> Judge:
        return Judge(JudgeParams(**{"url": server.url, "model": "m", "backoff": 0.001} | options))

    return make


@pytest.fixture
def judged(judge: Callable[..., Judge], rollout: Callable[..., Any]) -> Callable[..., Score]:
    """The score of the response ``4`` to ``2+2?``."""
    import asyncio

    def score(said: str = "4", **options: Any) -> Score:
        return asyncio.run(judge(**options)(rollout(said, question="2+2?", answer="4")))

    return score
