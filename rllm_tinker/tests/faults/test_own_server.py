"""The server that a run starts for itself ends with the run, however that ends, and a run ends with its server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from expecting import check_printed

from .conftest import DEADLINE, KEY, MINIBATCHES, QUICK, Rllm, is_alive, left_over, metrics_of, wait_until

pytestmark = pytest.mark.long

STEPS = 8
RUN = Path("runs", "rllm-training", "guess-1")
LOCAL = "local"


def _settings(directory: Path) -> tuple[str, ...]:
    return (f"training.default_local_dir={directory / 'checkpoints'}", f"rllm.trainer.total_batches={STEPS}")


@contextmanager
def _start_run(directory: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`rllm train` in its own process."""
    named = ("train", "guess", "rllm/backend=tinker", "tinker_base_url=local")
    command = (*named, *QUICK, *MINIBATCHES, *_settings(directory), *words)
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "rllm.cli.main", *command],
        cwd=directory,
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


def _servers_of(pid: int) -> list[int]:
    """Local servers that a process has started and that run."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            parent = (directory / "stat").read_text().rpartition(")")[2].split()[1]
            words = (directory / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid and b"--end-with-stdin" in words:
            found.append(int(directory.name))
    return found


@contextmanager
def _after(condition: Callable[[], bool], act: Callable[[], None]) -> Iterator[None]:
    """Act as soon as the condition is true, while the body runs."""

    def wait_and_act() -> None:
        wait_until(condition)
        act()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    yield
    thread.join(DEADLINE)


def test_killed_run_ends_its_server_and_resumes_equally(train: Rllm, tmp_path: Path) -> None:
    run, settings = tmp_path / RUN, _settings(tmp_path)

    # The run is killed: its server's input closes, and it ends by itself.
    with _start_run(tmp_path) as process:
        wait_until(lambda: _steps(run) >= 2 or process.poll() is not None)
        (own_server,) = _servers_of(process.pid)
        process.kill()
        process.communicate(timeout=DEADLINE)
        wait_until(lambda: not is_alive(own_server), 20)

    # Its server is killed.
    reached = _steps(run)
    with _after(lambda: _steps(run) > reached, lambda: os.kill(_servers_of(os.getpid())[0], signal.SIGKILL)):
        killed = train(LOCAL, *settings, "tinker_connect_timeout=2", "--resume")
    assert killed.code == 1
    check_printed(killed.error, "process-died", "SIGKILL", "--resume")
    assert not _servers_of(os.getpid())

    # Ctrl-C: the step is finished and saved.
    reached, before = _steps(run), left_over()
    with _after(lambda: _steps(run) > reached, lambda: os.kill(os.getpid(), signal.SIGINT)):
        interrupted = train(LOCAL, *settings, "--resume")
    assert interrupted.code == 130, interrupted.errors
    assert "this step" in interrupted.errors
    assert "--resume" in interrupted.output
    assert not _servers_of(os.getpid())
    assert left_over() == before

    undisturbed = train(LOCAL, settings[1], "rllm.trainer.experiment_name=undisturbed")
    assert undisturbed.code == 0, undisturbed.errors
    made = metrics_of(run)
    assert made == metrics_of(run.with_name("undisturbed"))[: len(made)]


def test_failed_start_of_local_server_has_reason(train: Rllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no room for the model\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    ended = train(LOCAL, *_settings(tmp_path))
    assert ended.code == 1
    said, remedy = "no room for the model", "`rllm tinker serve --model"
    check_printed(ended.error, "process-not-started", "exit code 3", "server.log", said, remedy)
