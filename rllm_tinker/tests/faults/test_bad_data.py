"""Data, disks and checkpoints that are not as they should be, and snapshots that are gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from expecting import check_printed, check_values
from tinker_in_process import RunningServer

from rllm_core.errors import CheckpointError
from rllm_tinker.state import FILE, read_state
from rllm_tinker_server import checkpoints as checkpoints_module
from rllm_tinker_server.owners import Owner

from .conftest import Rllm, metrics_of

RUN = Path("runs", "rllm-training", "guess-1")
CHECKPOINTS = RUN / "checkpoints"


def test_a_prompt_that_is_longer_than_the_context(train: Rllm, server: RunningServer) -> None:
    """No error: episodes end there, as with every backend, and it is counted."""
    ended = train(server.url, "training.max_length=2", "rllm.trainer.total_batches=1")
    assert ended.code == 0, ended.errors
    assert metrics_of(RUN)[0]["batch/ended_max_prompt_length_exceeded"] == 1.0


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
    server.service.checkpoints.delete(checkpoint, Owner("", is_only=True))
    ended = train(server.url, "rllm.trainer.total_batches=2", "--resume")
    assert ended.code == 1
    check_printed(ended.error, "checkpoint-not-loadable", f"No checkpoint {checkpoint}", server.url)
