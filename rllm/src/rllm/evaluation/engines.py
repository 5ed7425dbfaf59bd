"""Engines for evaluations: environments that sample alike share one, and load a model once."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any

from rllm.evaluation.rollouts import Job
from rllm.planning import RunPlan
from rllm_core.contracts.backend import Backend, RunContext
from rllm_core.contracts.engine import RolloutEngine

OF_ENGINE = ("backend", "profile", "renderer", "disable_thinking")
"""Keys of ``rllm`` that an engine depends on."""

OF_TASKS = ("train_", "val_")
"""How keys of ``data`` begin that an engine does not depend on."""


@asynccontextmanager
async def open_engine(plan: RunPlan) -> AsyncIterator[RolloutEngine]:
    """Start the engine of the plan's backend, with the model unchanged, and close the backend afterwards.

    Raises:
        BackendError: the backend cannot start.
    """
    backend: Backend = plan.backend.load()()
    try:
        yield await backend.start(
            RunContext(
                config=plan.config,
                backend_config=plan.composed.backend_config,
                seed=plan.config.rllm.trainer.seed,
                total_steps=1,
                renderer=plan.renderer,
                calls_tools=plan.workflow.plugin.calls_tools,
            )
        )
    finally:
        await backend.close()


async def with_engines(jobs: Sequence[Job]) -> AsyncGenerator[tuple[Job, RolloutEngine], None]:
    """Yield every job with its engine, which stays open until the next job is requested."""
    for _, alike in groupby(jobs, key=lambda job: engine_key(job.evaluation.plan)):
        together = list(alike)
        async with open_engine(together[0].evaluation.plan) as engine:
            for job in together:
                yield job, engine


def engine_key(plan: RunPlan) -> str:
    """Return the settings that an engine depends on, as text: the backend's sections and the core keys it reads."""
    tree = plan.composed.tree
    parts: dict[str, Any] = {name: section for name, section in tree.items() if name not in ("rllm", "data")}
    parts["data"] = {key: value for key, value in tree["data"].items() if not key.startswith(OF_TASKS)}
    parts["rllm"] = {key: tree["rllm"].get(key) for key in OF_ENGINE}
    return json.dumps([parts, plan.config.rllm.trainer.seed], sort_keys=True, default=str)
