"""An engine for what plays and does not train."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rllm_core.contracts.backend import Backend, RunContext
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.planning.plan import RunPlan


@asynccontextmanager
async def open_engine(plan: RunPlan) -> AsyncIterator[RolloutEngine]:
    """The own engine of the plan's backend, with the model as it is loaded. The backend is closed afterwards.

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
