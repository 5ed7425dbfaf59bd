"""Fakes for tests of stages: a backend without a model, a runner without a workflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rllm_core.contracts.backend import Backend, RunContext, UpdatePlan, UpdateResult
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.contracts.stage import RolloutRequest, StageContext
from rllm_core.data.batch import TokenBatch
from rllm_core.data.types import Episode, TerminationReason
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_core.rollout.runner import RolloutRunner
from rllm_core.schema.run_config import RunConfig
from rllm_plugin_kit.samples import ROLES, Member, fill, make_trajectory

HERE = "rllm_plugin_kit.stage_context"


class FakeBackend(Backend):
    """Fills columns with plausible numbers and learns nothing."""

    async def start(self, run: RunContext) -> RolloutEngine:
        raise NotImplementedError("this backend is a fake for tests and cannot sample")

    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        return fill(batch, needs)

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        return UpdateResult(metrics={"actor/loss": 0.0})

    async def sync_weights(self, version: int) -> None:
        pass

    async def save(self, directory: Path) -> None:
        pass

    async def load(self, directory: Path) -> None:
        pass


class FakeRunner(RolloutRunner):
    """In every rollout each of `ROLES` gives one answer of two tokens; rewards of a task's rollouts rise from 0."""

    def __init__(self) -> None:
        pass

    async def run(self, order: RolloutRequest) -> list[Episode]:
        return [
            Episode(
                id=f"{task.id}:{index}",
                trajectories=[
                    make_trajectory(Member(float(index)), f"{order.label}/{task.id}:{index}/{role}", role)
                    for role in ROLES
                ],
                is_correct=index > 0,
                termination_reason=TerminationReason.ENV_DONE,
                data_source=task.data_source,
            )
            for task in order.tasks
            for index in range(order.rollouts)
        ]


def stage_context(**overrides: Any) -> StageContext:
    """A context as a run with default config gives its stages, without a model; `overrides` are fields of it."""
    registry = Registry.load(allow=[], environ={})

    def choose_default(kind: str, name: str) -> PluginChoice[Any]:
        return choose(registry, kind, name, HERE)

    estimator, loss = choose_default("estimator", "grpo"), choose_default("loss", "ppo")
    rejection = choose_default("rejection", "none")
    fields: dict[str, Any] = {
        "config": RunConfig(),
        "seed": 0,
        "backend": FakeBackend(),
        "runner": FakeRunner(),
        "grouping": choose_default("grouping", "task_role"),
        "rejection": rejection.registered.load()(rejection.params),
        "rejection_name": rejection.registered.qualified_name,
        "needs": frozenset(),
        "estimator_of": lambda role: estimator,
        "loss_of": lambda role: loss,
        "log": lambda global_step, metrics: None,
        "max_context": 32_768,
    }
    return StageContext(**fields | overrides)
