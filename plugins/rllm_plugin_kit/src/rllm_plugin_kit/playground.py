"""Fakes for tests of workflows: an engine that answers from a list, and an environment that can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.environment import Environment, Outcome, Split
from rllm_core.data.types import Task
from rllm_core.rollout.prompts import checked_prompt
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.seeding import derive_seed

STOP_ID = 1
FIRST_ID = 10
"""Characters are tokens from here on, so that special ones stay apart."""
MAX_CONTEXT = 2000

Fault = Literal["", "reset raises", "step raises", "reset hangs", "step hangs", "never done", "engine raises"]


class Characters:
    """A tokenizer with one token per character; turns begin with ``<u>``, ``<a>``, …."""

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **options: Any) -> str:
        said = [f"<{message['role'][0]}>{message['content']}" for message in conversation]
        ended = [text + ("$" if text.startswith("<a>") else "") for text in said]
        return "".join(ended) + "<a>"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [STOP_ID if character == "$" else FIRST_ID + ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(chr(token - FIRST_ID) for token in token_ids if token >= FIRST_ID)


@dataclass(frozen=True)
class Call:
    """One request that the engine has answered."""

    session: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    completion: Completion


@dataclass
class Answering:
    """A rollout engine whose responses depend only on prompt and seed, as with every engine."""

    responses: Sequence[str]
    fault: Fault = ""
    renderer: TemplateRenderer = field(default_factory=lambda: TemplateRenderer(Characters(), {STOP_ID}))
    max_context: int = MAX_CONTEXT
    calls: list[Call] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        self.ended.discard(session)
        prompt, room = checked_prompt(prompt_ids, sampling, self.max_context)
        if self.fault == "engine raises":
            raise RuntimeError("the engine raises")
        await asyncio.sleep(0)
        draw = derive_seed(sampling.seed, *prompt.tolist())
        text = self.responses[draw % len(self.responses)]
        tokens = [*Characters().encode(text, add_special_tokens=False), STOP_ID][:room]
        # Like real ones, and telling calls apart.
        logprobs = -np.random.default_rng(draw).exponential(1.0, len(tokens)).astype(np.float32) - 0.01
        completion = Completion(
            token_ids=np.array(tokens, np.int32),
            logprobs=logprobs,
            finish_reason="stop" if tokens[-1] == STOP_ID else "length",
            weight_version=7,
        )
        self.calls.append(Call(session, tuple(prompt.tolist()), sampling, completion))
        return completion

    async def end_session(self, session: str) -> None:
        self.ended.add(session)

    @property
    def open_sessions(self) -> set[str]:
        """Sessions that were used and not ended."""
        return {call.session for call in self.calls} - self.ended


@dataclass
class World:
    """Makes the environments of rollouts, and knows which of them are open."""

    turns: int
    fault: Fault = ""
    made: list[Playing] = field(default_factory=list)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)

    def make(self) -> Environment:
        """An environment for one rollout."""
        self.made.append(Playing(self))
        return self.made[-1]

    @property
    def closed(self) -> list[int]:
        """How often each was closed."""
        return [environment.closed for environment in self.made]


class Playing(Environment):
    """An environment that repeats each action and ends after some turns. The reward is the share of even characters."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._turn = 0
        self.closed = 0

    @classmethod
    def tasks(cls, split: Split, params: Any) -> Sequence[Task]:
        return []

    async def reset(self, task: Mapping[str, Any]) -> str:
        await self._go_wrong("reset")
        return f"Play {sorted(task.items())}"

    async def step(self, action: Any) -> Outcome:
        await self._go_wrong("step")
        self._turn += 1
        words = str(action)
        reward = sum(ord(character) % 2 == 0 for character in words) / (len(words) or 1)
        done = self._world.fault != "never done" and self._turn >= self._world.turns
        return Outcome(observation=f"You said {words[:20]}.", reward=reward, done=done, metrics={"turns": self._turn})

    def close(self) -> None:
        self.closed += 1

    async def _go_wrong(self, method: str) -> None:
        await asyncio.sleep(0)
        if self._world.fault == f"{method} raises":
            raise RuntimeError(f"{method} raises")
        if self._world.fault == f"{method} hangs":
            self._world.hanging.set()
            await asyncio.Event().wait()
