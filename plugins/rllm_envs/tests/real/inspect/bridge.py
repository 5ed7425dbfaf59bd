"""Runs samples in the workflow `inspect`, with a scripted engine and a gateway in this process."""

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
from rllm_envs.inspect.loading import InspectTasks
from rllm_envs.inspect.options import InspectParams
from rllm_envs.inspect.running import OpenedTask, open_task
from rllm_envs.inspect.workflow import InspectWorkflow

TASKS = str(Path(__file__).with_name("in_tasks.py"))


def make_params(name: str, **options: Any) -> InspectParams:
    """Return options for a task of these tests."""
    return InspectParams(task=f"{TASKS}:{name}", **options)


@asynccontextmanager
async def opened(engine: Engine, params: InspectParams, max_turns: int = 20) -> AsyncIterator[OpenedTask]:
    """What `WorkflowPlugin.open` of the workflow gives."""
    config = RunConfig.model_validate({"rllm": {"agent": {"max_steps": max_turns}}})
    run: Any = OpenedRun(config=config, engine=engine, directory=None, stop_texts=False)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as directory:
        async with (
            open_gateway_here(run, Path(directory)) as gateway,
            open_task(run, params, gateway, Path(directory)) as task,
        ):
            yield task


async def roll_out(engine: Engine, task: OpenedTask, data: Mapping[str, Any], uid: str) -> Episode:
    return await InspectWorkflow(make_context(engine, task)).run(dict(data), uid)


def episodes(
    response: Callable[[str], str], params: InspectParams, max_turns: int = 20
) -> tuple[Sequence[Episode], Engine]:
    """Roll out all validation tasks at the same time."""
    engine = Engine(response)

    async def run() -> Sequence[Episode]:
        tasks = InspectTasks.tasks("val", params)
        async with opened(engine, params, max_turns) as task:
            running = (roll_out(engine, task, each.data, f"{each.id}:0") for each in tasks)
            return await asyncio.gather(*running)

    return asyncio.run(run()), engine
