"""A local server on its own thread, and the objects of the backend: a connection, models, batches."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pytest
from tinker_in_process import RunningServer, tiny_server

from rllm_core.contracts.engine import SamplingParams
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.plugins.registry import Registry
from rllm_tinker.client import Service, Trainer
from rllm_tinker.health import HttpHealth
from rllm_tinker.settings import ModelSection
from rllm_tinker.waiting import Waiting
from rllm_tinker_server.limits import TinkerLimits

T = TypeVar("T")
KEY = "tml-test"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Serves `tiny`; shared, as clients cannot see each other's models."""
    with tiny_server(tmp_path_factory.mktemp("checkpoints"), limits=TinkerLimits(max_models=1000)) as running:
        yield running


@pytest.fixture(scope="session")
def registry() -> Registry:
    return Registry.load()


@dataclass(frozen=True)
class Connection:
    """A session with the server, used from synchronous tests."""

    run: asyncio.Runner
    service: Service

    def ask(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.run.run(coroutine)

    def trainer(self, **model: Any) -> Trainer:
        """A LoRA model; the same every time."""
        return self.ask(self.service.create(ModelSection(name="tiny", lora_rank=4, **model), seed=7))


@pytest.fixture(scope="module")
def connection(server: RunningServer) -> Iterator[Connection]:
    waiting = Waiting(HttpHealth(server.url), patience=10.0, longest=60.0)
    with asyncio.Runner() as runner:
        service = runner.run(Service.connect(server.url, KEY, waiting))
        yield Connection(runner, service)
        runner.run(service.close())


@pytest.fixture(scope="module")
def batch(connection: Connection) -> TokenBatch:
    """Rows of two roles and several lengths, sampled by the server from the base model, with advantages."""
    roles = ("solver", "judge")

    async def sample() -> list[Trajectory]:
        sampler = await connection.service.sampler(base_model="tiny")
        trajectories = []
        for index in range(8):
            prompt = np.arange(4, 6 + index % 3, dtype=np.int32)
            params = SamplingParams(max_tokens=2 + index % 4)
            found = await sampler.sample([prompt], params, [], [index])
            trajectory = Trajectory(roles[index % len(roles)], reward=float(index))
            trajectory.add_step(prompt, found[0].tokens, found[0].logprobs, weight_version=0)
            trajectories.append(trajectory)
        return trajectories

    trajectories = connection.ask(sample())
    groups = [
        TrajectoryGroup(group_id=f"task:{role}", trajectories=[each for each in trajectories if each.name == role])
        for role in roles
    ]
    batch = build_batch(groups)
    rng = np.random.default_rng(0)
    advantages = np.repeat(rng.normal(size=batch.n_rows), batch.row_lengths).astype(np.float32) * batch.loss_mask
    return batch.with_columns(old_logprobs=batch.sampling_logprobs, advantages=advantages)
