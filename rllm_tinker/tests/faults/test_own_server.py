"""The server that a run starts for itself ends with the run, however that ends, and a run ends with its server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .conftest import DEADLINE, KEY, QUICK, Rllm, is_alive, left_over, metrics_of, wait_until

pytestmark = pytest.mark.slow

STEPS = 8
RUN = Path("runs", "rllm-training", "default")
LOCAL = "local"


def _settings(folder: Path) -> tuple[str, ...]:
    return (f"training.default_local_dir={folder / 'checkpoints'}", f"rllm.trainer.total_batches={STEPS}")


@contextmanager
def _started(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`rllm train` in a process of its own."""
    command = (*("train", "guess", "rllm/backend=tinker", "tinker_base_url=local"), *QUICK, *_settings(folder), *words)
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "rllm_core.cli.main", *command],
        cwd=folder,
        env=os.environ | {"COLUMNS": "200", "TINKER_API_KEY": KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _steps(run: Path) -> int:
    file = run / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def _children(pid: int) -> list[int]:
    """Processes that a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid:
            found.append(int(stat.parent.name))
    return found


def _server_of(pid: int) -> int:
    (server,) = (child for child in _children(pid) if b"serve" in Path(f"/proc/{child}/cmdline").read_bytes())
    return server


def test_a_run_that_is_interrupted_killed_and_loses_its_server_ends_with_the_same_numbers(
    train: Rllm, tmp_path: Path
) -> None:
    run, before = tmp_path / RUN, left_over()

    # Ctrl-C: the step is finished and saved.
    with _started(tmp_path) as process:
        wait_until(lambda: _steps(run) >= 2 or process.poll() is not None)
        server = _server_of(process.pid)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=DEADLINE)
        assert process.returncode == 130, errors
        assert "finishing this step, then saving" in errors
        assert "The same command with --resume goes on from there." in output
        assert not is_alive(server)
        assert left_over() == before

    # The run is killed: its server's input closes, and it ends by itself.
    reached = _steps(run)
    with _started(tmp_path, "--resume") as process:
        wait_until(lambda: _steps(run) > reached or process.poll() is not None)
        server = _server_of(process.pid)
        process.kill()
        process.communicate(timeout=DEADLINE)
        wait_until(lambda: not is_alive(server), 20)

    # Its server is killed.
    reached = _steps(run)

    def kill_server() -> None:
        wait_until(lambda: _steps(run) > reached)
        os.kill(_server_of(os.getpid()), signal.SIGKILL)

    killing = threading.Thread(target=kill_server)
    killing.start()
    killed = train(LOCAL, *_settings(tmp_path), "tinker_connect_timeout=2", "--resume")
    killing.join(DEADLINE)
    assert killed.code == 1
    assert "The run's local Tinker server has ended: exit code -9" in killed.error
    assert "Go on from the newest checkpoint with --resume, which starts another one." in killed.error

    resumed = train(LOCAL, *_settings(tmp_path), "--resume")
    assert resumed.code == 0, resumed.errors
    undisturbed = train(LOCAL, *_settings(tmp_path), "rllm.trainer.experiment_name=undisturbed")
    assert undisturbed.code == 0, undisturbed.errors
    assert metrics_of(run) == metrics_of(run.with_name("undisturbed"))
    assert not [child for child in _children(os.getpid()) if b"serve" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_a_local_server_that_cannot_be_started_says_why(train: Rllm, tmp_path: Path) -> None:
    ended = train(LOCAL, "model.name=./nowhere", "model.tokenizer=tiny", *_settings(tmp_path))
    assert ended.code == 1
    assert "The local Tinker server could not be started: exit code 2" in ended.error
    assert "there is no such folder" in ended.error
    assert "`rllm tinker serve --model" in ended.error
