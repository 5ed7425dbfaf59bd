"""Rolls out tasks in the workflow `verifiers`, with a scripted engine and a gateway in this process."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway_in_process import open_gateway_here
from scripted_engine import Engine, make_context

from rllm_core.contracts.workflow import OpenedRun
from rllm_core.data.types import Episode
from rllm_core.schema.run_config import RunConfig
from rllm_envs.verifiers.opening import open_environment
from rllm_envs.verifiers.options import VerifiersParams
from rllm_envs.verifiers.tasks import VerifiersTasks
from rllm_envs.verifiers.workflow import OpenedEnvironment, VerifiersWorkflow


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
    context = make_context(engine, environment)
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
