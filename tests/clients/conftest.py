"""A gateway with room for the long prompts of frameworks, and the Python that has the clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gateway_world
import pytest
from gateway_world import World, running
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tool_tokenizer import STOP, ToolTokenizer

from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_gateway.serving.gateway import Gateway

from .rollout import ProgramRunner

ROOM = 50_000
"""Characters. The prompt of smolagents has ten thousand."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--client-python", type=Path, required=True, help="The Python of an environment with the clients.")


MARKS = {"<think>": "«", "</think>": "»"}


class Thinking(ToolTokenizer):
    """A tokenizer with ``«`` and ``»`` around reasoning."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return super().encode(MARKS.get(text, text), add_special_tokens=add_special_tokens)


@pytest.fixture
def statuses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the HTTP statuses of all answers. List it before `world`."""
    found = list[int]()

    def create_app(gateway: Gateway) -> ASGIApp:
        app = app_of_gateway(gateway)

        async def noting(scope: Scope, receive: Receive, send: Send) -> None:
            async def note(message: Message) -> None:
                if message["type"] == "http.response.start":
                    found.append(message["status"])
                await send(message)

            await app(scope, receive, note)

        return noting

    app_of_gateway = gateway_world.create_app
    monkeypatch.setattr(gateway_world, "create_app", create_app)
    return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running(tmp_path, attached=lambda: TemplateRenderer(Thinking(), [STOP])) as world:
        world.policy.max_context = ROOM
        yield world


@pytest.fixture
def runner(world: World, pytestconfig: pytest.Config, tmp_path: Path) -> ProgramRunner:
    return ProgramRunner(world, pytestconfig.getoption("--client-python"), tmp_path)
