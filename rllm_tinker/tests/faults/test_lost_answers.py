"""Requests and answers that are lost on the way change nothing: no gradient, step or sample counts twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from expecting import check_error
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tinker_in_process import RunningServer
from tinker_plans import plan_of

from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.engine import SamplingParams
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import BackendError
from rllm_tinker.client import Service, Trainer
from rllm_tinker.datums import Rows
from rllm_tinker.exchange import SampledSequence
from rllm_tinker.health import HttpHealth
from rllm_tinker.settings import ModelSection, TrainingSection
from rllm_tinker.update import Updater
from rllm_tinker.waiting import Waiting
from rllm_tinker_server.checkpoints import TinkerPath

from .proxy import Fault, FaultyProxy, faulty_proxy

pytestmark = pytest.mark.long

KEY = "tml-test"
MINIBATCHES = 2
UPDATES = 2
USED = {"create_session", "create_model", "forward_backward", "optim_step", "asample", "save_weights", "load_weights"}
"""Routes that a training run requests, in addition to `retrieve_future`."""


@dataclass(frozen=True)
class Trained:
    """Results of an update, of rollouts, of a checkpoint and of an update after the resume."""

    metrics: list[dict[str, float]]
    samples: list[SampledSequence]
    logprobs: NDArray[np.float32]
    steps: set[float]
    """Optimizer steps that the saved optimizer counts, of each parameter."""


async def _train(url: str, checkpoints: Path, batch: TokenBatch, plan: UpdatePlan) -> Trained:
    service = await Service.connect(url, KEY, Waiting(HttpHealth(url), patience=20.0, longest=60.0))
    try:
        trainer = await service.create(ModelSection(name="tiny", lora_rank=4), seed=7)
        settings = TrainingSection(learning_rate=0.01, num_minibatches=MINIBATCHES)
        updater = Updater(settings, total_steps=UPDATES, max_response_length=8, fused=True)
        metrics = [(await updater.update(trainer, batch, plan)).metrics]
        sampler = await trainer.sampler("snapshot")
        prompts = [np.arange(4, 8 + number, dtype=np.int32) for number in range(3)]
        samples = [
            *await sampler.sample(prompts, SamplingParams(max_tokens=6), [], [1, 2, 3]),
            *await sampler.sample(prompts[:1], SamplingParams(max_tokens=6), [], [4]),
        ]
        trainer = await service.resume(await trainer.save("first"))
        metrics.append((await updater.update(trainer, batch, plan)).metrics)
        saved = TinkerPath.parse(await trainer.save("second")).below(checkpoints)
        optimizer = load_file(saved / "optimizer.safetensors")
        steps = {float(value) for name, value in optimizer.items() if name.endswith("/step")}
        return Trained(metrics, samples, await _logprobs(trainer, batch), steps)
    finally:
        await service.close()


async def _logprobs(trainer: Trainer, batch: TokenBatch) -> NDArray[np.float32]:
    rows = Rows.from_batch(batch, np.arange(batch.n_rows))
    found = await trainer.forward(rows.datums(weights=batch.loss_mask.astype(np.float32)))
    return rows.column(found.logprobs)


@pytest.fixture(scope="module")
def proxies(server: RunningServer) -> Iterator[dict[Fault | None, FaultyProxy]]:
    """One for each fault, which the first request of every route meets, and one without."""
    with ExitStack() as stack:
        found = {fault: stack.enter_context(faulty_proxy(server.url)) for fault in (None, *Fault)}
        for fault, proxy in found.items():
            proxy.fault, proxy.times = fault, 1
        yield found


@pytest.fixture(scope="module")
def trained(
    server: RunningServer, proxies: dict[Fault | None, FaultyProxy], batch: TokenBatch
) -> dict[Fault | None, Trained]:
    """Of every proxy; all at once, as most of the time is spent waiting to ask again."""
    # One loss is the service's, the other is computed here, with a forward pass before it.
    plan, checkpoints = plan_of("ppo", judge="sapo"), server.service.checkpoints.root

    async def all_of_them() -> list[Trained]:
        return await asyncio.gather(*(_train(each.url, checkpoints, batch, plan) for each in proxies.values()))

    return dict(zip(proxies, asyncio.run(all_of_them()), strict=True))


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name)
def test_a_fault_of_every_route_changes_nothing(
    trained: dict[Fault | None, Trained], proxies: dict[Fault | None, FaultyProxy], fault: Fault
) -> None:
    assert set(proxies[fault].met) >= USED | {"retrieve_future"}
    found, expected = trained[fault], trained[None]
    np.testing.assert_array_equal(found.logprobs, expected.logprobs)
    for one, other in zip(found.samples, expected.samples, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)
    assert found.metrics == expected.metrics
    assert found.steps == expected.steps == {MINIBATCHES * UPDATES}


ENDLESS = [
    ("forward_backward", Fault.LOST_REQUEST),
    ("optim_step", Fault.STATUS_429),
    ("retrieve_future", Fault.STATUS_408),
]


async def _endless(url: str, batch: TokenBatch, plan: UpdatePlan, proxy: FaultyProxy, route: str) -> BackendError:
    """The error of an update during which all requests of a route meet the fault; `healthz` is spared."""
    service = await Service.connect(url, KEY, Waiting(HttpHealth(url), patience=10.0, longest=2.0))
    try:
        trainer = await service.create(ModelSection(name="tiny", lora_rank=4), seed=7)
        updater = Updater(TrainingSection(), total_steps=1, max_response_length=8, fused=False)
        proxy.routes = frozenset({route})
        with pytest.raises(BackendError) as caught:
            await updater.update(trainer, batch, plan)
        return caught.value
    finally:
        proxy.routes = frozenset({"none"})
        await service.close()


def test_a_fault_that_never_ends_ends_the_wait_when_time_is_up(server: RunningServer, batch: TokenBatch) -> None:
    async def all_of_them(proxies: list[FaultyProxy]) -> list[BackendError]:
        plan = plan_of("ppo")
        return await asyncio.gather(
            *(
                _endless(proxy.url, batch, plan, proxy, route)
                for proxy, (route, _) in zip(proxies, ENDLESS, strict=True)
            )
        )

    with ExitStack() as stack:
        proxies = [stack.enter_context(faulty_proxy(server.url)) for _ in ENDLESS]
        for proxy, (_, fault) in zip(proxies, ENDLESS, strict=True):
            proxy.fault, proxy.routes = fault, frozenset({"none"})
        errors = asyncio.run(all_of_them(proxies))
    for (route, _), error in zip(ENDLESS, errors, strict=True):
        what = "optimi" if route == "optim_step" else "forward and backward"
        check_error(error, "service-unreachable", what, "2 s", "tinker_timeout", "--resume")
