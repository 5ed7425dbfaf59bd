"""Scripted models and environments with tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from character_engine import CharacterEngine, Characters, in_turn
from rollout_context import context_of

from rllm_core.contracts.engine import SamplingParams
from rllm_core.contracts.environment import Environment, Outcome, Split
from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.data.types import Task


class ToolCharacters(Characters):
    """Turns are ``<u>…``, ``<t>…`` for tools and ``<a>…$``; calls are JSON in ``<call>``."""

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] = (), **options: Any
    ) -> str:
        shown = "".join(f"[{tool['function']['name']}]" for tool in tools)
        return shown + "".join(map(self._turn, conversation)) + "<a>"

    def _turn(self, message: Mapping[str, Any]) -> str:
        calls = "".join(f"<call>{json.dumps(call['function'])}</call>" for call in message.get("tool_calls", ()))
        return f"<{message['role'][0]}>{message['content']}{calls}{'$' if message['role'] == 'assistant' else ''}"


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
def scripted() -> Callable[[list[str]], CharacterEngine]:
    """An engine that gives these responses in turn."""
    return lambda responses: CharacterEngine(in_turn(*responses), ToolCharacters())


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
