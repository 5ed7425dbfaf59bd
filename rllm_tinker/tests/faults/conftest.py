"""The `rllm` command in this process, and servers in their own processes."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rllm.cli.main import main

DEADLINE = 100.0
"""Seconds after which something hangs, however busy the machine is."""
KEY = "tml-test"
TIMES = "time/"

QUICK = (
    "rllm.rollout.n=2",
    "data.train_batch_size=2",
    "rllm.rollout.n_val=1",
    "rllm.trainer.val_before_train=false",
    "rllm.trainer.test_freq=-1",
    "rllm.trainer.save_freq=1",
)
"""A few games per step: what is tested is the machinery, not whether it learns."""
MINIBATCHES = ("training.num_epochs=1", "training.num_minibatches=2")


@dataclass(frozen=True)
class CommandResult:
    """A command that has ended."""

    code: int
    output: str
    errors: str

    @property
    def error(self) -> str:
        """The error that a failed command prints below warnings and progress."""
        _, label, error = self.errors.partition("error[")
        assert label, self.errors
        return label + error


Rllm = Callable[..., CommandResult]


@pytest.fixture
def rllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rllm:
    """Run `rllm WORDS` in this process, in an empty directory. A report takes more time than a short run."""
    monkeypatch.setenv("RLLM_BLOCK_PLUGINS", "rllm-view")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)

    def run(*words: str) -> CommandResult:
        output, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(output), redirect_stderr(errors):
            code = main(words)
        return CommandResult(code, output.getvalue(), errors.getvalue())

    return run


@pytest.fixture
def train(rllm: Rllm) -> Rllm:
    """A short training run of `guess` with the backend `tinker`: ``train(url, *words)``."""

    def run(url: str, *words: str) -> CommandResult:
        named = ("train", "guess", "rllm/backend=tinker", f"tinker_base_url={url}", "--model", "tiny")
        return rllm(*named, *QUICK, *MINIBATCHES, *words)

    return run


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """Everything that was noted of each step, but for how long it took."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith(TIMES)} for line in lines]


def is_alive(pid: int) -> bool:
    """True if a process runs. False for a process that has ended but was not waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], seconds: float = DEADLINE) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@dataclass(frozen=True)
class ServerProcess:
    """`rllm tinker serve` in its own process."""

    url: str
    process: Any

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.join(DEADLINE)


@contextmanager
def server_process(directory: Path, *options: str) -> Iterator[ServerProcess]:
    """A server that keeps its checkpoints in `directory`. Forked from a process with torch loaded: half a second."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rllm.cli.main", "rllm_tinker_server.serve"])
    announce = directory / f"announce-{time.monotonic_ns()}.json"
    words = ("tinker", "serve", "--model", "tiny", "--port", "0", "--api-key", KEY, "--announce", str(announce))
    process = context.Process(target=main, args=((*words, "--checkpoints", str(directory), *options),), daemon=True)
    process.start()
    try:
        wait_until(lambda: announce.exists() or not process.is_alive())
        yield ServerProcess(json.loads(announce.read_text())["url"], process)
    finally:
        process.kill()
        process.join(DEADLINE)
        process.close()


def left_over() -> set[str]:
    """Directories of local servers in the directory for temporary files."""
    return {entry.name for entry in Path(os.environ.get("TMPDIR", "/tmp")).glob("rllm-tinker-*")}
