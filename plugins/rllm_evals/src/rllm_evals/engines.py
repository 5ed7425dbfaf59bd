"""Which environments can be played with one engine, so that a model is loaded once for all of them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from itertools import groupby
from typing import Any

from rllm_core.contracts.engine import RolloutEngine
from rllm_core.planning import RunPlan
from rllm_core.training import open_engine
from rllm_evals.playing import Job

OF_ENGINE = ("backend", "profile", "renderer", "disable_thinking")
"""Keys of ``rllm`` that an engine depends on."""

OF_TASKS = ("train_", "val_")
"""How keys of ``data`` begin that an engine does not depend on."""


async def with_engines(jobs: Sequence[Job]) -> AsyncGenerator[tuple[Job, RolloutEngine], None]:
    """Every job with its engine, which is open until the next one is asked for."""
    for _, alike in groupby(jobs, key=lambda job: engine_key(job.play.plan)):
        together = list(alike)
        async with open_engine(together[0].play.plan) as engine:
            for job in together:
                yield job, engine


def engine_key(plan: RunPlan) -> str:
    """What an engine depends on, as text: the backend's own sections, and keys of the core that backends look at."""
    tree = plan.composed.tree
    parts: dict[str, Any] = {name: section for name, section in tree.items() if name not in ("rllm", "data")}
    parts["data"] = {key: value for key, value in tree["data"].items() if not key.startswith(OF_TASKS)}
    parts["rllm"] = {key: tree["rllm"].get(key) for key in OF_ENGINE}
    return json.dumps([parts, plan.config.rllm.trainer.seed], sort_keys=True, default=str)
