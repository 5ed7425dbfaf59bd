"""Asynchronous runs of `local`: signals and kills stop the generating process or the training process."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="sums in one order need MKL"),
]
STEPS, STOPPED = 8, 4
WORDS = (
    "train",
    "guess",
    "rllm.async_training.enable=true",
    "rllm.async_training.staleness_threshold=2",
    f"rllm.trainer.total_batches={STEPS}",
    "rllm.trainer.val_before_train=false",
    "rllm.trainer.test_freq=-1",
    "rllm.trainer.save_freq=3",
    "rllm.rollout.n=2",
    "rllm.rollout.n_val=1",
    "rllm.record=tokens",
    "data.train_batch_size=8",
)
WITHOUT_REPORT = {"RLLM_BLOCK_PLUGINS": "rllm-view"}
Start = Callable[..., Any]


def _digests(run: Path) -> dict[str, str]:
    """Return a digest of the last checkpoint's weights and optimizer, and of the record of every step."""
    files = [*(run / "checkpoints/latest/backend").rglob("*.safetensors"), *(run / "record").rglob("*.parquet")]
    return {str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _steps(run: Path) -> int:
    file = run / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def _trainer_of(run: int) -> int:
    """Return the training process, a child of the run's command server."""
    (server,) = _children(run)
    (trainer,) = _children(server)
    return trainer


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def environ(environ: dict[str, str]) -> dict[str, str]:
    return environ | WITHOUT_REPORT


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the result of an undisturbed run in one process."""
    directory = tmp_path_factory.mktemp("undisturbed")
    command = [sys.executable, "-m", "rllm.cli.main", *WORDS, "local.training_process=false"]
    environ = os.environ | WITHOUT_REPORT
    subprocess.run(command, cwd=directory, check=True, timeout=400, capture_output=True, env=environ)
    return _digests(directory / "runs/rllm-training/default")


@pytest.fixture
def begun(start_forked_rllm: Start, tmp_path: Path) -> Callable[[], tuple[Any, int, Path]]:
    """Return a run that has made some steps, its training process, and its directory."""

    def make() -> tuple[Any, int, Path]:
        run, process = tmp_path / "runs/rllm-training/default", start_forked_rllm(*WORDS)
        deadline = time.monotonic() + 400
        while _steps(run) < STOPPED:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "the run makes no progress"
            time.sleep(0.01)
        return process, _trainer_of(process.pid), run

    return make


@pytest.mark.long
def test_stopped_run_stops_its_child_and_resumes_exactly(
    begun: Any, forked_rllm: Any, undisturbed: dict[str, str]
) -> None:
    process, child, run = begun()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=400)
    while _alive(child):
        time.sleep(0.01)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert "--resume" in output
    assert "Traceback" not in errors
    resumed = forked_rllm(*WORDS, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert _digests(run) == undisturbed


@pytest.mark.long
def test_run_with_killed_child_keeps_steps_and_resumes(
    begun: Any, forked_rllm: Any, undisturbed: dict[str, str]
) -> None:
    process, child, run = begun()
    os.kill(child, signal.SIGKILL)
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 1
    said = " ".join(errors.split())
    assert "error[process-died]:" in said
    assert "SIGKILL" in said
    assert "--resume" in said
    assert STOPPED <= _steps(run) < STEPS
    assert all(json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    resumed = forked_rllm(*WORDS, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert _digests(run) == undisturbed


LOSS = """
from rllm_core import register_rllm_loss


@register_rllm_loss("plain", has_ratio=False)
def plain(inputs, params):
    return -inputs.advantages * inputs.logprobs
"""


def test_a_loss_of_a_file_in_the_directory_of_the_run_trains_as_in_one_process(
    forked_rllm: Any, tmp_path: Path
) -> None:
    (tmp_path / "my_losses.py").write_text(LOSS)
    words = (*WORDS, "rllm.trainer.total_batches=3", "--loss", "plain", "rllm.plugins.import_modules=[my_losses]")
    for name, apart in (("apart", "true"), ("here", "false")):
        process = f"local.training_process={apart}"
        done = forked_rllm(*words, process, f"rllm.trainer.experiment_name={name}")
        assert done.returncode == 0, done.stderr
    runs = tmp_path / "runs/rllm-training"
    assert _digests(runs / "apart") == _digests(runs / "here")
