"""A backend's checkpoint is checked before the start, and a run can be stopped during the start."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, NoReturn

import pytest
from expecting import check_printed

from rllm_core.contracts.backend import RunContext
from rllm_core.errors import CheckpointError
from rllm_local.backend import LocalBackend

TRAIN = (
    "train",
    "sum",
    "rllm.trainer.total_batches=1",
    "rllm.trainer.test_freq=-1",
    "rllm.trainer.val_before_train=false",
)


async def never(self: LocalBackend, run: RunContext) -> NoReturn:
    pytest.fail("the backend starts")


@pytest.mark.smoke
def test_checkpoint_is_checked_before_the_backend_starts(
    rllm_here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: LocalBackend, run: RunContext, directory: Path) -> None:
        assert any(directory.rglob("*.safetensors"))
        raise CheckpointError("made-up", "2 workers.", "Resume with 2.")

    assert rllm_here(*TRAIN).returncode == 0
    monkeypatch.setattr(LocalBackend, "check_checkpoint", refuse)
    monkeypatch.setattr(LocalBackend, "start", never)
    ended = rllm_here(*TRAIN, "--resume", "rllm.trainer.total_batches=2")
    assert ended.returncode == 1
    assert ended.stderr.endswith("error[made-up]: 2 workers.\nhint: Resume with 2.\n")
    weights = next((tmp_path / "runs/rllm-training/sum-1/checkpoints/latest").resolve().rglob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    ended = rllm_here(*TRAIN, "--resume", "rllm.trainer.total_batches=2")
    assert ended.returncode == 1
    check_printed(ended.stderr, "no-checkpoint", "step_000001: ", ".safetensors")


def test_signal_while_backend_starts_stops_the_run(rllm_here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    close = LocalBackend.close

    async def start(self: LocalBackend, run: RunContext) -> NoReturn:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(600)
        pytest.fail("no signal stopped it")

    async def closes(self: LocalBackend) -> None:
        closed.append(self)
        await close(self)

    monkeypatch.setattr(LocalBackend, "start", start)
    monkeypatch.setattr(LocalBackend, "close", closes)
    ended = rllm_here(*TRAIN)
    assert ended.returncode == 128 + signal.SIGINT
    assert "stopped before" in ended.stdout
    assert len(closed) == 1
