"""Asynchronous runs of `local`: signals and kills stop the generating process or the training process."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from expecting import check_printed
from killed_runs import training_metrics
from live_processes import is_alive

pytestmark = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="sums in one order need MKL")
STEPS, STOPPED = 7, 3
RUNS = Path("runs", "rllm-training")
WORDS = (
    "train",
    "guess",
    "rllm.async_training.enable=true",
    "rllm.async_training.staleness_threshold=2",
    f"rllm.trainer.total_batches={STEPS}",
    "rllm.trainer.val_before_train=false",
    "rllm.trainer.test_freq=-1",
    "rllm.trainer.save_freq=2",
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
    return len(training_metrics(run.parents[2]))


def _trainer_of(run: int) -> int:
    """Return the training process, a child of the run's command server."""
    (server,) = _children(run)
    (trainer,) = _children(server)
    return trainer


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def environ(environ: dict[str, str]) -> dict[str, str]:
    return environ | WITHOUT_REPORT


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, command_server: Any) -> dict[str, str]:
    """Return the result of an undisturbed run in one process."""
    directory = tmp_path_factory.mktemp("undisturbed")
    words = (*WORDS, "local.training_process=false")
    process = command_server.start("rllm.cli.main", words, directory, os.environ | WITHOUT_REPORT)
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    return _digests(directory / RUNS / "guess-1")


@pytest.fixture
def begun(start_forked_rllm: Start, tmp_path: Path) -> Callable[[], tuple[Any, int, Path]]:
    """Return a run that has made some steps, its training process, and its directory."""

    def make() -> tuple[Any, int, Path]:
        run, process = tmp_path / RUNS / "guess-1", start_forked_rllm(*WORDS)
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
    while is_alive(child):
        time.sleep(0.01)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert "--resume" in output
    assert "Traceback" not in errors
    resumed = forked_rllm(*WORDS, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert _digests(run) == undisturbed


@pytest.mark.smoke
def test_run_with_killed_child_keeps_steps_and_resumes(
    begun: Any, forked_rllm: Any, undisturbed: dict[str, str]
) -> None:
    process, child, run = begun()
    os.kill(child, signal.SIGKILL)
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 1
    check_printed(errors, "process-died", "SIGKILL", "--resume")
    assert STOPPED <= _steps(run) < STEPS
    resumed = forked_rllm(*WORDS, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert _digests(run) == undisturbed


LOSS = """
from rllm_core import register_rllm_loss


@register_rllm_loss("plain", has_ratio=False)
def plain(inputs, params):
    return -inputs.advantages * inputs.logprobs
"""


@pytest.mark.long
def test_loss_of_a_file_trains_in_both_processes(forked_rllm: Any, tmp_path: Path) -> None:
    (tmp_path / "my_losses.py").write_text(LOSS)
    words = (*WORDS, "rllm.trainer.total_batches=3", "--loss", "plain", "rllm.plugins.import_modules=[my_losses]")
    for name, process in (("apart", "true"), ("here", "false")):
        done = forked_rllm(*words, f"local.training_process={process}", f"rllm.trainer.experiment_name={name}")
        assert done.returncode == 0, done.stderr
    assert _digests(tmp_path / RUNS / "apart") == _digests(tmp_path / RUNS / "here") != {}
