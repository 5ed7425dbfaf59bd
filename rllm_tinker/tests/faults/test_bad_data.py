"""Data, disks and checkpoints that are not as they should be, and snapshots that are gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import check_error, check_printed, check_values, expect_error
from tinker_in_process import RunningServer, tiny_server
from tinker_plans import plan_of

from rllm_core.contracts.engine import SamplingParams
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.errors import BackendError, CheckpointError
from rllm_tinker.client import Service
from rllm_tinker.health import HttpHealth
from rllm_tinker.settings import ModelSection, TrainingSection
from rllm_tinker.state import FILE, read_state
from rllm_tinker.update import Updater
from rllm_tinker.waiting import Waiting
from rllm_tinker_server import checkpoints as checkpoints_module
from rllm_tinker_server.limits import TinkerLimits

from .conftest import KEY, Rllm, metrics_of

RUN = Path("runs", "rllm-training", "default")
CHECKPOINTS = RUN / "checkpoints"


def test_a_prompt_that_is_longer_than_the_context(train: Rllm, server: RunningServer) -> None:
    """No error: episodes end there, as with every backend, and it is counted."""
    ended = train(server.url, "training.max_length=2", "rllm.trainer.total_batches=1")
    assert ended.code == 0, ended.errors
    assert metrics_of(RUN)[0]["batch/ended_max_prompt_length_exceeded"] == 1.0


def test_a_row_that_is_longer_than_the_model_takes(connection: Any) -> None:
    tokens = np.full(600, 5, np.int32)
    trajectory = Trajectory("solver", reward=1.0)
    trajectory.add_step(tokens[:1], tokens, np.full(600, -1.0, np.float32), weight_version=0)
    batch = build_batch([TrajectoryGroup(group_id="task:solver", trajectories=[trajectory])])
    batch = batch.with_columns(old_logprobs=batch.sampling_logprobs, advantages=np.ones(601, np.float32))
    with expect_error(BackendError, "service-rejected-request", "Datum 0: 600 tokens", "tiny", 512):
        updater = Updater(TrainingSection(), total_steps=10, max_response_length=8, fused=False)
        connection.ask(updater.update(connection.trainer(), batch, plan_of("ppo")))


def test_a_snapshot_that_has_expired(connection: Any, tmp_path: Path) -> None:
    async def sample_after_another_client(url: str) -> None:
        services = [
            await Service.connect(url, KEY, Waiting(HttpHealth(url), patience=10.0, longest=60.0)) for _ in range(2)
        ]
        try:
            trainers = [await service.create(ModelSection(name="tiny", lora_rank=4), seed=1) for service in services]
            sampler = await trainers[0].sampler("snapshot")
            await trainers[1].sampler("snapshot")
            await sampler.sample([np.array([5], np.int32)], SamplingParams(max_tokens=2), [], [1])
        finally:
            for service in services:
                await service.close()

    limits = TinkerLimits(max_snapshots=1)
    with tiny_server(tmp_path, limits=limits) as running, pytest.raises(BackendError) as caught:
        connection.ask(sample_after_another_client(running.url))
    check_error(caught.value, "service-lost-state", "Sampling", 410, "1 set", "--max-snapshots", "--resume")


@pytest.mark.long
def test_a_damaged_tinker_json(train: Rllm, server: RunningServer, tmp_path: Path) -> None:
    assert train(server.url, "rllm.trainer.total_batches=2").code == 0
    latest = tmp_path / CHECKPOINTS / "step_000002"
    (latest / "backend" / FILE).write_bytes(b"\xff{")
    resumed = train(server.url, "rllm.trainer.total_batches=3", "--resume")
    assert resumed.code == 0
    check_values(resumed.errors, "step_000002", "backend/tinker.json")
    (latest / "backend" / FILE).write_bytes(b"\xff{")
    named = train(server.url, "--model", str(latest), "rllm.trainer.experiment_name=other")
    assert named.code == 1
    check_printed(named.error, "damaged-checkpoint", FILE)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"path": 1}', b"\xff", b'{"path": "p", "base_model": "m", "x": 1}'])
def test_a_state_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"(?s)tinker\.json .*Delete "):
        read_state(tmp_path)


@pytest.mark.long
def test_a_checkpoint_that_the_service_has_lost(train: Rllm, server: RunningServer, tmp_path: Path) -> None:
    assert train(server.url, "rllm.trainer.total_batches=1").code == 0
    state = json.loads((tmp_path / CHECKPOINTS / "latest" / "backend" / FILE).read_text())
    checkpoint = checkpoints_module.TinkerPath.parse(state["path"])
    server.service.checkpoints.delete(checkpoint)
    ended = train(server.url, "rllm.trainer.total_batches=2", "--resume")
    assert ended.code == 1
    check_printed(ended.error, "checkpoint-not-loadable", f"No checkpoint {checkpoint}", server.url)
