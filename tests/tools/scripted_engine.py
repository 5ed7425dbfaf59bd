"""An engine that answers prompts with a function, for workflows whose model calls go through the gateway."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tool_tokenizer import STOP, ToolTokenizer

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.rollout.template_renderer import TemplateRenderer

MAX_CONTEXT = 20_000


@dataclass(eq=False)
class Engine:
    """Answers a prompt with `response`, a token per character."""

    response: Callable[[str], str]
    renderer: TemplateRenderer = field(default_factory=lambda: TemplateRenderer(ToolTokenizer(), [STOP]))
    max_context: int = MAX_CONTEXT
    calls: list[tuple[list[int], list[int]]] = field(default_factory=list)
    """Prompts and responses."""
    seeds: list[int] = field(default_factory=list)

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        text = self.response("".join(map(chr, prompt_ids)))
        ids = np.array([*map(ord, text), STOP][: sampling.max_tokens], np.int32)
        self.calls.append((list(map(int, prompt_ids)), ids.tolist()))
        self.seeds.append(sampling.seed)
        return Completion(
            token_ids=ids,
            logprobs=np.full(len(ids), -0.5, np.float32),
            finish_reason="stop" if ids[-1] == STOP else "length",
            weight_version=0,
        )

    async def end_session(self, session: str) -> None:
        pass


def make_context(engine: Engine, resource: Any) -> WorkflowContext:
    """Return the context of a rollout that `engine` samples. `resource` is the result of `WorkflowPlugin.open`."""
    return WorkflowContext(
        engine=engine,  # type: ignore[arg-type]
        sampling=SamplingParams(seed=7, max_tokens=1000, temperature=1.0),
        max_prompt_length=MAX_CONTEXT,
        max_response_length=1000,
        max_steps=20,
        accumulate_reasoning=False,
        make_agent=lambda: None,  # type: ignore[arg-type,return-value]
        make_environment=None,
        environment_blocks=False,
        label="train",
        rollout=0,
        resource=resource,
    )
