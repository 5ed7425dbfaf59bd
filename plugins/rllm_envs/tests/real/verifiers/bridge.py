"""Rolls out tasks in the workflow `verifiers`, with a scripted engine and a gateway in this process."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gateway_in_process import open_gateway_here
from tool_tokenizer import STOP, ToolTokenizer

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.workflow import OpenedRun, WorkflowContext
from rllm_core.data.types import Episode
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.schema.run_config import RunConfig
from rllm_envs.verifiers.opening import open_environment
from rllm_envs.verifiers.options import VerifiersParams
from rllm_envs.verifiers.tasks import VerifiersTasks
from rllm_envs.verifiers.workflow import OpenedEnvironment, VerifiersWorkflow

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


@asynccontextmanager
async def opened(engine: Engine, **options: Any) -> AsyncIterator[OpenedEnvironment]:
    """What `WorkflowPlugin.open` of the workflow gives, for an environment with these options."""
    run: Any = OpenedRun(config=RunConfig(), engine=engine, directory=None, stop_texts=False)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as directory:
        async with (
            open_gateway_here(run, Path(directory)) as gateway,
            open_environment(run, VerifiersParams(**options), gateway) as environment,
        ):
            yield environment


async def roll_out(engine: Engine, environment: OpenedEnvironment, task: Mapping[str, Any], uid: str) -> Episode:
    context = WorkflowContext(
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
        resource=environment,
    )
    return await VerifiersWorkflow(context).run(dict(task), uid)


def episodes(response: Callable[[str], str], **options: Any) -> tuple[Sequence[Episode], Engine]:
    """Roll out all training tasks of an environment with these options at the same time."""
    engine = Engine(response)

    async def run() -> Sequence[Episode]:
        tasks = VerifiersTasks.tasks("train", VerifiersParams(**options))
        async with opened(engine, **options) as environment:
            running = (roll_out(engine, environment, task.data, f"{task.id}:0") for task in tasks)
            return await asyncio.gather(*running)

    return asyncio.run(run()), engine
