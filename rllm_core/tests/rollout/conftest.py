"""An engine that answers by a script, a tokenizer of characters, and environments made of functions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from rollout_context import context_of

from rllm_core.contracts import Completion, Environment, Outcome, Renderer, SamplingParams, Split, WorkflowContext
from rllm_core.data.types import Task
from rllm_core.data.version_spans import VersionSpan
from rllm_core.rollout.template_renderer import TemplateRenderer

STOP = ord("$")


class CharacterTokenizer:
    """One token per character. ``u`` and ``a`` in angle brackets start turns; ``$`` ends the assistant's."""

    def __init__(self) -> None:
        self.templated = 0
        self.encoded: list[str] = []
        self.decoded = 0

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **options: Any) -> str:
        assert options == {"tokenize": False, "add_generation_prompt": True}
        self.templated += 1
        ends = {"assistant": "$"}
        said = [f"<{m['role'][0]}>{m['content']}{ends.get(m['role'], '')}" for m in conversation]
        return "".join(said) + "<a>"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        self.encoded.append(text)
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        self.decoded += 1
        return "".join(chr(token) for token in token_ids if token != STOP)


Answer = Callable[[str, SamplingParams], str | Awaitable[str]]


@dataclass
class ScriptedEngine:
    """Answers each prompt by calling `answer`; a text that ends with ``$`` has stopped by itself."""

    answer: Answer = lambda prompt, sampling: "ok$"
    max_context: int = 1000
    renderer: Renderer = field(default_factory=lambda: TemplateRenderer(CharacterTokenizer(), [STOP]))
    prompts: list[str] = field(default_factory=list)
    samplings: list[SamplingParams] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    weight_version: int = 0
    version_spans: tuple[VersionSpan, ...] = ()

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        prompt = "".join(chr(token) for token in prompt_ids)
        self.prompts.append(prompt)
        self.samplings.append(sampling)
        self.sessions.append(session)
        response = self.answer(prompt, sampling)
        text = response if isinstance(response, str) else await response
        text = text[: sampling.max_tokens]
        return Completion(
            token_ids=np.array([ord(character) for character in text], np.int32),
            logprobs=np.full(len(text), -0.5, np.float32),
            finish_reason="stop" if text.endswith("$") else "length",
            weight_version=self.weight_version,
            version_spans=self.version_spans,
        )

    async def end_session(self, session: str) -> None:
        self.ended.append(session)


class FunctionEnvironment(Environment):
    """An environment whose methods are given, and which counts how often it was closed."""

    def __init__(
        self,
        step: Callable[[str], Any] = lambda action: Outcome(done=True, reward=1.0),
        reset: Callable[[Mapping[str, Any]], Any] = lambda task: "go",
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._step, self._reset, self._close = step, reset, close
        self.closed = 0

    @classmethod
    def tasks(cls, split: Split, params: Any) -> Sequence[Task]:
        return []

    def reset(self, task: Mapping[str, Any]) -> Any:
        return self._reset(task)

    def step(self, action: str) -> Any:
        return self._step(action)

    def close(self) -> None:
        self.closed += 1
        self._close()


@pytest.fixture
def tokenizer() -> CharacterTokenizer:
    return CharacterTokenizer()


@pytest.fixture
def engine() -> ScriptedEngine:
    """Answers ``ok`` until a test sets `answer`."""
    return ScriptedEngine()


@pytest.fixture
def context(engine: ScriptedEngine) -> Callable[..., WorkflowContext]:
    """The context of a rollout with that engine; keywords change its fields."""

    def make(**changes: Any) -> WorkflowContext:
        given = {"engine": engine, "sampling": SamplingParams(max_tokens=100, seed=5), "max_response_length": 20}
        return context_of(**given | changes)

    return make


@pytest.fixture
def hang() -> Callable[[], Awaitable[None]]:
    """A coroutine that never ends by itself."""
    return lambda: asyncio.sleep(3600)
