"""The core's plugins with a backend that only remembers what it was asked, and a runner that returns given episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import Field

from rllm.config.compose import compose
from rllm.config.layers import Layer
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm_core.contracts.backend import Backend, BackendPlugin, Capabilities, RunContext, UpdatePlan, UpdateResult
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.contracts.params import NoParams, Params
from rllm_core.contracts.stage import RolloutRequest, StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch
from rllm_core.data.types import Episode, Task, TerminationReason, Trajectory
from rllm_core.pipeline.pipeline import Pipeline
from rllm_core.plugins.discovery import IN_PROCESS
from rllm_core.plugins.registry import Registry
from rllm_core.plugins.specs import KINDS

TIS = "rllm.algorithm.rollout_correction.tis_mode"


class ProbeSection(Params):
    size: int = Field(1, description="Nothing.")


class ProbeSections(Params):
    probe: ProbeSection = Field(default_factory=ProbeSection, description="Nothing.")


@dataclass
class ProbeBackend(Backend):
    """Remembers what it was asked, in order."""

    calls: list[tuple[str, Any]] = field(default_factory=list)

    async def start(self, run: RunContext) -> RolloutEngine:
        raise NotImplementedError

    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        self.calls.append(("process", needs))
        return batch.with_columns(old_logprobs=batch.sampling_logprobs)

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        self.calls.append(("update", (batch, plan)))
        return UpdateResult(metrics={"actor/loss": 0.5})

    async def sync_weights(self, version: int) -> None:
        self.calls.append(("sync_weights", version))

    async def save(self, directory: Path) -> None:
        raise NotImplementedError

    async def load(self, directory: Path) -> None:
        raise NotImplementedError


@dataclass
class GivenEpisodes:
    """In place of a runner: returns `episodes` and remembers the orders."""

    episodes: list[Episode] = field(default_factory=list)
    orders: list[RolloutRequest] = field(default_factory=list)

    async def run(self, order: RolloutRequest) -> list[Episode]:
        self.orders.append(order)
        return self.episodes


@dataclass
class Bench:
    """A pipeline made from a config, with what it talks to."""

    plan: RunPlan
    backend: ProbeBackend = field(default_factory=ProbeBackend)
    runner: GivenEpisodes = field(default_factory=GivenEpisodes)
    logged: list[tuple[int, Mapping[str, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.context = StageContext(
            config=self.plan.config,
            seed=3,
            backend=self.backend,
            runner=self.runner,  # type: ignore[arg-type]
            grouping=self.plan.grouping,
            rejection=self.plan.rejection.plugin.load()(self.plan.rejection.params),
            needs=self.plan.needs,
            rejection_name=self.plan.rejection.registered.qualified_name,
            estimator_of=self.plan.estimators.get,
            loss_of=self.plan.losses.get,
            log=lambda global_step, metrics: self.logged.append((global_step, metrics)),
            max_context=1000,
        )
        self.pipeline = Pipeline(self.plan.stages, self.context)

    @property
    def stage_names(self) -> list[str]:
        return [stage.plugin.name for stage in self.plan.stages]

    def stage(self, name: str) -> Any:
        """Return one stage."""
        chosen = next(stage for stage in self.plan.stages if stage.plugin.name == name)
        return chosen.plugin.load()(self.context, chosen.params)


@pytest.fixture(scope="session")
def core_registry() -> Registry:
    """The core's plugins. Their loading takes longer than most tests."""
    return Registry.load(allow=[], environ={})


@pytest.fixture
def registry(core_registry: Registry) -> Registry:
    """The core's own plugins, and backends `probe` (any loss), `poor` (one loss) and `weak` (no loss, no columns)."""
    registry = Registry(discovery=core_registry.discovery)
    for kind in KINDS:
        for entry in core_registry.all(kind):
            registry.add(entry.plugin, distribution=entry.distribution, version=entry.version)
    old = frozenset({"old_logprobs"})
    for name, capabilities in (
        ("probe", Capabilities(custom_losses=True, columns=old)),
        ("poor", Capabilities(losses=frozenset({"ppo"}), columns=old)),
        ("weak", Capabilities()),
    ):
        registry.add(
            BackendPlugin(
                name=name,
                summary="For tests.",
                load_params=lambda: ProbeSections,
                load=lambda: ProbeBackend,
                config_keys=frozenset({"rllm.algorithm.loss_agg_mode", "rllm.algorithm.entropy.*", TIS}),
                model_key="probe.size",
                capabilities=capabilities,
            )
        )
    return registry


@pytest.fixture
def offer(registry: Registry) -> Callable[..., None]:
    """Offers a plugin of a kind whose `load` returns `made`; keywords are further fields of its spec."""

    def add(
        kind: str, name: str, made: Any = None, *, params: Any = NoParams, distribution: str = IN_PROCESS, **fields: Any
    ) -> None:
        spec = {"summary": "For tests.", "load_params": lambda: params, "load": lambda: made} | fields
        registry.add(KINDS[kind].record(name=name, **spec), distribution=distribution)

    return add


@pytest.fixture
def plan(registry: Registry) -> Callable[..., RunPlan]:
    """The plan of a config, given as dotted keys; the backend is `probe` unless said otherwise."""

    def make(settings: Mapping[str, Any] | None = None) -> RunPlan:
        tree: dict[str, Any] = {}
        for key, value in {"rllm.backend": "probe", **(settings or {})}.items():
            *path, last = key.split(".")
            node = tree
            for part in path:
                node = node.setdefault(part, {})
            node[last] = value
        return make_plan(compose(registry, [Layer("my.yaml", tree)]), registry)

    return make


@pytest.fixture
def bench(plan: Callable[..., RunPlan]) -> Callable[..., Bench]:
    return lambda settings=None: Bench(plan(settings))


@pytest.fixture
def add_stage(offer: Callable[..., None]) -> Callable[..., None]:
    """Offers a stage made of a function of the step, or of a class."""

    def add(name: str, body: Any, reads: str = "", writes: str = "", **fields: Any) -> None:
        def make(context: StageContext, params: NoParams) -> Any:
            async def run(step: TrainStep) -> None:
                body(step)

            return run

        made = body if isinstance(body, type) else make
        offer("stage", name, made, reads=frozenset(reads.split()), writes=frozenset(writes.split()), **fields)

    return add


@pytest.fixture
def step() -> Callable[..., TrainStep]:
    """A training step; keywords change its fields."""

    def make(**changes: Any) -> TrainStep:
        fields: dict[str, Any] = {"global_step": 4, "epoch": 1, "total_steps": 10, "tasks": [Task(id="t")]}
        return TrainStep(**fields | changes)

    return make


@pytest.fixture
def rollouts() -> Callable[..., list[Episode]]:
    """Rollouts of one task with these rewards, each of one turn of `said` tokens."""

    def make(
        rewards: Sequence[float | None],
        task: str = "t",
        role: str = "agent",
        said: int = 2,
        reason: TerminationReason = TerminationReason.ENV_DONE,
    ) -> list[Episode]:
        episodes = []
        for index, reward in enumerate(rewards):
            trajectory = Trajectory(role, reward=reward)
            trajectory.add_step([1, 2], np.arange(said), [-0.5] * said)
            solved = reward is not None and reward > 0
            episodes.append(
                Episode(id=f"{task}:{index}", trajectories=[trajectory], is_correct=solved, termination_reason=reason)
            )
        return episodes

    return make
