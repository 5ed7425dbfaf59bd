"""Runs the real `rllm` command in a new process (`rllm`), a forked one (`forked_rllm`), or this one (`rllm_here`)."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from forked import CommandServer, ForkedProcess

from rllm.cli.main import main

SMALL = (
    "rllm.rollout.n=4",
    "rllm.rollout.n_val=1",
    "rllm.trainer.val_before_train=false",
    "rllm.trainer.test_freq=10",
    "rllm.trainer.save_freq=5",
)
"""A few games per step, because the tests check the machinery and not the learning."""

RLLM = "rllm.cli.main"
Rllm = Callable[..., "subprocess.CompletedProcess[str]"]
StartRllm = Callable[..., "subprocess.Popen[str]"]


def command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-W", "error", "-m", RLLM, *words]


@pytest.fixture
def environ() -> dict[str, str]:
    """Return the environment of the processes. Tests may add to it."""
    return os.environ | {"COLUMNS": "200", "RLLM_BLOCK_PLUGINS": "", "RLLM_DEBUG": "0"}


@pytest.fixture
def rllm(tmp_path: Path, environ: dict[str, str]) -> Rllm:
    """Run `rllm WORDS` in an empty directory and wait for it."""

    def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(words), cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200, **options
        )

    return run


@pytest.fixture
def rllm_here(tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Rllm:
    """Run `rllm WORDS` in an empty directory, in this process. For tests that check nothing about a process."""
    monkeypatch.chdir(tmp_path)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        output, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(output), redirect_stderr(errors):
            code = main(words)
        return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())

    return run


@pytest.fixture
def start_rllm(tmp_path: Path, environ: dict[str, str]) -> StartRllm:
    """Start `rllm WORDS` in an empty directory."""

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command(words), cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


@pytest.fixture
def start_forked_rllm(
    command_server: CommandServer, tmp_path: Path, environ: dict[str, str]
) -> Iterator[Callable[..., ForkedProcess]]:
    """Start `rllm WORDS` in an empty directory, in a process that has imported torch and transformers."""
    started: list[ForkedProcess] = []

    def start(*words: str) -> ForkedProcess:
        started.append(command_server.start(RLLM, words, tmp_path, environ))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def forked_rllm(start_forked_rllm: Callable[..., ForkedProcess]) -> Rllm:
    """Run `rllm WORDS` in such a process, and wait for it. For tests that check nothing about process start."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        process = start_forked_rllm(*words)
        stdout, stderr = process.communicate(timeout=200)
        assert process.returncode is not None
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    return run
