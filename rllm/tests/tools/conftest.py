"""No test here needs a network, and none gets one."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rollout_context import context_of

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.environment import Environment, Outcome, Split
from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.data.types import Task
from rllm_core.rollout.template_renderer import TemplateRenderer

STOP = ord("$")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError(f"a test wants the network: {arguments}")

    for name in ("connect", "connect_ex", "bind"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


class Characters:
    """One token per character. Turns are ``<u>…``, ``<t>…`` for tools and ``<a>…$``; calls are JSON in ``<call>``."""

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] = (), **options: Any
    ) -> str:
        shown = "".join(f"[{tool['function']['name']}]" for tool in tools)
        return shown + "".join(map(self._turn, conversation)) + "<a>"

    def _turn(self, message: Mapping[str, Any]) -> str:
        calls = "".join(f"<call>{json.dumps(call['function'])}</call>" for call in message.get("tool_calls", ()))
        return f"<{message['role'][0]}>{message['content']}{calls}{'$' if message['role'] == 'assistant' else ''}"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(chr(token) for token in token_ids if token != STOP)


@dataclass
class Scripted:
    """An engine that gives these responses in turn; one that ends with ``$`` has stopped by itself."""

    responses: list[str]
    max_context: int = 5000
    renderer: Any = field(default_factory=lambda: TemplateRenderer(Characters(), [STOP]))
    prompts: list[str] = field(default_factory=list)

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        self.prompts.append("".join(map(chr, prompt_ids)))
        text = self.responses[len(self.prompts) - 1]
        return Completion(
            token_ids=np.array([*map(ord, text)], np.int32),
            logprobs=np.full(len(text), -0.5, np.float32),
            finish_reason="stop" if text.endswith("$") else "length",
            weight_version=0,
        )

    async def end_session(self, session: str) -> None:
        return


class World(Environment):
    """Asks one question; says what was answered."""

    actions: list[str]

    def __init__(self, tools: Sequence[Any] = ()) -> None:
        self.actions = []
        self._tools = tools

    @classmethod
    def tasks(cls, split: Split, params: Any) -> Sequence[Task]:
        return []

    def reset(self, task: Mapping[str, Any]) -> str:
        return "1+2?"

    def tools(self, task: Mapping[str, Any]) -> Any:
        return self._tools

    def step(self, action: str) -> Outcome:
        self.actions.append(action)
        return Outcome(done=True, reward=1.0, correct=True, metrics={"answers": 1.0})


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted


@pytest.fixture
def world() -> type[World]:
    return World


@pytest.fixture
def context() -> Callable[..., WorkflowContext]:
    """The context of a rollout with this engine and environment; keywords change other fields."""

    def make(engine: Any, environment: Environment, **changes: Any) -> WorkflowContext:
        lengths = {"max_prompt_length": 4000, "max_response_length": 500}
        sampling = SamplingParams(max_tokens=500, seed=5)
        given = {"sampling": sampling, "make_environment": lambda: environment, **lengths}
        return context_of(engine, **given | changes)

    return make


@pytest.fixture
def tool_file(tmp_path: Path) -> Callable[[str], Path]:
    """A file with this Python in it."""

    def write(source: str) -> Path:
        path = tmp_path / "tools.py"
        path.write_text(source)
        return path

    return write
