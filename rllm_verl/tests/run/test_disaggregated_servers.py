"""A rollout server on a separate GPU: it samples while the worker trains, and new weights cut responses off."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from expecting import expect_error

from rllm.config.compose import compose
from rllm.config.layers import Layer, Tier, layer_from_keys
from rllm_core.contracts.backend import RunContext, UpdatePlan, UpdateResult
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.errors import BackendError
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_plugin_kit.session import REQUESTS, ROLE, BackendSession, difference
from rllm_verl.backend import VerlBackend
from rllm_verl.processes import Process

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SETTINGS = {
    "rllm.backend": "verl",
    "rllm.profile": "cpu",
    "actor_rollout_ref.rollout.nnodes": 1,
    "actor_rollout_ref.actor.optim.lr": 1e-2,
    "deadlines.rollout": 60.0,
}
PROMPT = [10, 11, 12, 13]
OLD = frozenset({"old_logprobs"})


@dataclass
class RunningBackend:
    session: BackendSession
    backend: VerlBackend
    loss: Any

    async def sample(self, seed: int, max_tokens: int) -> Completion:
        sampling = SamplingParams(max_tokens=max_tokens, seed=seed)
        return await self.session.engine.generate(PROMPT, sampling, session=f"seed {seed}")

    async def update(self, batch: TokenBatch) -> UpdateResult:
        signs = np.repeat(np.where(np.arange(batch.n_rows) % 2, -1.0, 1.0), batch.row_lengths)
        plan = UpdatePlan(
            global_step=self.session.updates,
            losses={ROLE: self.loss},
            aggregation="token-mean",
            entropy_coeff=0.0,
            seed=1,
        )
        return await self.backend.update(batch.with_columns(advantages=(signs * batch.loss_mask).astype("f4")), plan)

    async def sync_weights(self) -> None:
        self.session.updates += 1
        await self.backend.sync_weights(self.session.updates)

    async def count_running(self) -> int:
        """Responses that the server is sampling now."""
        (server,) = self.backend._require_session().servers._manager.server_handles
        inside: int = await server.__ray_call__.remote(lambda server: server._gate._inside)
        return inside

    def process(self, name: str) -> Process:
        return next(each for each in self.backend._processes() if each.name == name)

    def trainers_logprobs(self, *completions: Completion) -> list[Any]:
        """Of the tokens of responses to `PROMPT`, under the weights of the trainer."""
        batch = batch_of(*completions)
        old = self.session.ask(self.backend.process(batch, OLD)).old_logprobs
        assert old is not None
        ends = np.cumsum([len(each.token_ids) for each in completions])
        return np.split(old[batch.loss_mask], ends[:-1])


def batch_of(*completions: Completion) -> TokenBatch:
    trajectories = []
    for completion in completions:
        trajectory = Trajectory(ROLE, reward=0.0)
        trajectory.add_step(
            PROMPT,
            completion.token_ids,
            completion.logprobs,
            weight_version=completion.weight_version,
            version_spans=completion.version_spans,
        )
        trajectories.append(trajectory)
    return build_batch([TrajectoryGroup(group_id=f"task:{ROLE}", trajectories=trajectories)])


@pytest.fixture(scope="module")
def running(ray_cluster: None) -> Iterator[RunningBackend]:
    """Tests below are in an order: the last one kills what the first ones need."""
    registry = Registry.load()
    layers: list[Layer] = [layer_from_keys(SETTINGS, "the test", Tier.USER)]
    composed = compose(registry, layers)
    loss = choose(registry, "loss", "ppo", "the test")
    run = RunContext(config=composed.config, backend_config=composed.backend_config, seed=0, total_steps=10)
    session = BackendSession(VerlBackend, run, loss)
    assert isinstance(session.backend, VerlBackend)
    yield RunningBackend(session, session.backend, loss)
    session.close()


def test_trainer_and_server_weights_agree_after_every_sync(running: RunningBackend) -> None:
    before = running.session.sample(REQUESTS)
    for _ in range(2):
        batch = running.session.ask(running.backend.process(running.session.batch(), OLD))
        assert batch.old_logprobs is not None
        assert np.abs(batch.old_logprobs - batch.sampling_logprobs)[batch.loss_mask].max() < 1e-4
        running.session.ask(running.update(batch))
        running.session.ask(running.sync_weights())
    after = running.session.sample(REQUESTS)
    assert {completion.weight_version for completion in after} == {running.session.updates}
    assert difference(before, after) > 1e-2


def test_responses_finish_during_an_update(running: RunningBackend) -> None:
    batch = running.session.ask(running.backend.process(running.session.batch(), OLD))
    worker = running.process("worker 0")

    async def scenario() -> list[str]:
        events = []
        os.kill(worker.pid, signal.SIGSTOP)  # the update cannot end before the worker continues
        try:
            update = asyncio.create_task(running.update(batch))
            update.add_done_callback(lambda _: events.append("update"))
            await asyncio.gather(*(running.sample(seed, 8) for seed in range(4)))
            events.append("responses")
        finally:
            os.kill(worker.pid, signal.SIGCONT)
        await update
        return events

    assert running.session.ask(scenario()) == ["responses", "update"]
    running.session.ask(running.sync_weights())


def test_a_running_response_continues_with_synced_weights(
    running: RunningBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfer, server = running.backend._require_session().servers._transfer, running.process("rollout server 0")
    abort = transfer.abort_replicas

    async def abort_and_let_go_on() -> None:
        aborting = asyncio.ensure_future(abort())
        await asyncio.sleep(0)
        os.kill(server.pid, signal.SIGCONT)
        await aborting

    monkeypatch.setattr(transfer, "abort_replicas", abort_and_let_go_on)

    async def longest() -> tuple[int, Completion]:
        responses = await asyncio.gather(*(running.sample(seed, 1000) for seed in range(64)))
        return max(enumerate(responses), key=lambda pair: len(pair[1].token_ids))

    seed, whole = running.session.ask(longest())
    old = running.session.updates
    batch = running.session.ask(running.backend.process(running.session.batch(), OLD))

    async def cut_off() -> Completion:
        await running.update(batch)
        response = asyncio.create_task(running.sample(seed, 1000))
        while not await running.count_running():
            pass
        os.kill(server.pid, signal.SIGSTOP)  # it samples nothing before it is told of new weights
        await running.sync_weights()
        return await response

    response = running.session.ask(cut_off())
    first, second = response.version_spans
    assert (first.version, second.version) == (old, old + 1)
    assert response.token_ids[: first.tokens].tolist() == whole.token_ids[: first.tokens].tolist()
    (trainers,) = running.trainers_logprobs(response)
    np.testing.assert_allclose(response.logprobs[first.tokens :], trainers[first.tokens :], atol=1e-4)
    assert np.abs(response.logprobs - trainers)[: first.tokens].max() > 1e-3


@pytest.mark.parametrize(
    ("name", "call", "doing"),
    [
        ("receiver of weights 0", lambda running: running.sync_weights(), "weights to"),
        ("rollout server 0", lambda running: running.sample(0, 4), "sampling rollouts"),
    ],
)
def test_a_process_that_was_killed_is_named(
    running: RunningBackend, name: str, call: Callable[[RunningBackend], Any], doing: str
) -> None:
    process = running.process(name)
    os.kill(process.pid, signal.SIGKILL)
    with expect_error(BackendError, "process-died", doing, f"{name} (process {process.pid}", "--resume"):
        running.session.ask(call(running))
