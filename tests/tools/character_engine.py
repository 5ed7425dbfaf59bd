"""An engine whose tokens are characters, and whose responses a test writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.rollout.template_renderer import TemplateRenderer

STOP = ord("$")
Answer = Callable[[str, SamplingParams], str | Awaitable[str]]


class Characters:
    """A tokenizer with one token per character. Every message is its text and a bar."""

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **options: Any) -> str:
        return "".join(f"{message['content']}|" for message in conversation)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(chr(token) for token in token_ids if token != STOP)


def in_turn(*responses: str) -> Answer:
    """Return these responses, in the order of the calls."""
    remaining = iter(responses)
    return lambda prompt, sampling: next(remaining)


@dataclass
class CharacterEngine:
    """Answers each prompt by calling `answer`. A text that ends with ``$`` has stopped by itself."""

    answer: Answer
    tokenizer: Characters = field(default_factory=Characters)
    max_context: int = 5000
    prompts: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.renderer = TemplateRenderer(self.tokenizer, [STOP])

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        prompt = "".join(map(chr, prompt_ids))
        self.prompts.append(prompt)
        self.seeds.append(sampling.seed)
        self.sessions.append(session)
        response = self.answer(prompt, sampling)
        text = (response if isinstance(response, str) else await response)[: sampling.max_tokens]
        return Completion(
            token_ids=np.array([*map(ord, text)], np.int32),
            logprobs=np.full(len(text), -0.5, np.float32),
            finish_reason="stop" if text.endswith("$") else "length",
            weight_version=0,
        )

    async def end_session(self, session: str) -> None:
        self.ended.append(session)
