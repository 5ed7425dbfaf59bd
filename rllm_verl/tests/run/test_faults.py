"""Two workers with a reference model: what they compute, and what is said when one of the processes is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from expecting import expect_error

from rllm.config.compose import compose
from rllm.config.layers import Layer, Tier, layer_from_keys
from rllm_core.contracts.backend import KlTerm, RunContext, UpdatePlan
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.loss import LossPlugin
from rllm_core.data.batch import TokenBatch
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
    "rllm.algorithm.kl_beta": 0.01,
    "trainer.n_gpus_per_node": 2,
    "actor_rollout_ref.actor.optim.lr": 1e-2,
    "deadlines.rollout": 200.0,
}


@dataclass
class RunningBackend:
    session: BackendSession
    backend: VerlBackend
    loss: PluginChoice[LossPlugin[Any]]

    def filled_batch(self) -> TokenBatch:
        needs = frozenset({"old_logprobs", "ref_logprobs"})
        batch = self.session.ask(self.backend.process(self.session.batch(), needs))
        signs = np.repeat(np.where(np.arange(batch.n_rows) % 2, -1.0, 1.0), batch.row_lengths)
        return batch.with_columns(advantages=(signs * batch.loss_mask).astype(np.float32))

    def update(self, batch: TokenBatch) -> Mapping[str, float]:
        plan = UpdatePlan(
            global_step=self.session.updates,
            losses={ROLE: self.loss},
            aggregation="token-mean",
            entropy_coeff=0.0,
            seed=1,
            kl=KlTerm(beta=0.01, estimator="k3"),
        )
        return self.session.ask(self.backend.update(batch, plan)).metrics

    def sync_weights(self) -> None:
        self.session.updates += 1
        self.session.ask(self.backend.sync_weights(self.session.updates))

    def process(self, name: str) -> Process:
        return next(each for each in self.backend._processes() if each.name == name)


@pytest.fixture(scope="module")
def running(ray_cluster: None) -> Iterator[RunningBackend]:
    """Tests below are in an order: the last ones kill what the first ones need."""
    registry = Registry.load()
    layers: list[Layer] = [layer_from_keys(SETTINGS, "the test", Tier.USER)]
    composed = compose(registry, layers)
    loss = choose(registry, "loss", "ppo", "the test")
    run = RunContext(
        config=composed.config,
        backend_config=composed.backend_config,
        seed=0,
        total_steps=10,
        needs=frozenset({"ref_logprobs"}),
    )
    session = BackendSession(VerlBackend, run, loss)
    assert isinstance(session.backend, VerlBackend)
    yield RunningBackend(session, session.backend, loss)
    session.close()


def test_kl_divergence_is_0_before_the_first_update(running: RunningBackend) -> None:
    batch = running.filled_batch()
    assert batch.ref_logprobs is not None
    assert batch.old_logprobs is not None
    assert np.array_equal(batch.ref_logprobs, batch.old_logprobs)
    assert running.update(batch)["actor/kl_ref"] == 0.0
    running.sync_weights()


def test_training_and_rollout_log_probs_agree_after_syncs(running: RunningBackend) -> None:
    before = running.session.sample(REQUESTS)
    for _ in range(2):
        batch = running.filled_batch()
        assert batch.old_logprobs is not None
        sampled = batch.loss_mask
        assert np.abs(batch.old_logprobs - batch.sampling_logprobs)[sampled].max() < 1e-4
        metrics = running.update(batch)
        assert metrics["actor/kl_ref"] > 0
        running.sync_weights()
    after = running.session.sample(REQUESTS)
    assert difference(before, after) > 1e-2
    assert {completion.weight_version for completion in after} == {running.session.updates}


def test_samples_after_log_probs_use_the_synced_weights(running: RunningBackend) -> None:
    before = running.session.sample(REQUESTS)
    running.filled_batch()  # the servers may have put their weights away
    assert difference(before, running.session.sample(REQUESTS)) < 1e-4


def test_silent_rollout_server_fails_at_its_deadline(running: RunningBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    server = running.process("rollout server 0")
    assert running.session.engine._seconds == 200.0
    monkeypatch.setattr(running.session.engine, "_seconds", 1.0)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with expect_error(BackendError, "process-timeout", "sampling rollouts", "1 second", "`deadlines.rollout`"):
            running.session.sample(REQUESTS)
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_worker_killed_in_update_is_named(running: RunningBackend) -> None:
    batch, worker = running.filled_batch(), running.process("worker 1")
    # Stopped first, so that the update is under way when the worker dies.
    os.kill(worker.pid, signal.SIGSTOP)
    threading.Timer(1.0, os.kill, (worker.pid, signal.SIGKILL)).start()
    with expect_error(
        BackendError, "process-died", "updating the policy", f"worker 1 (process {worker.pid}", "--resume"
    ):
        running.update(batch)
