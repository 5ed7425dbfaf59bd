"""Runs the real `rllm` command in a forked process (`forked_rllm`), or in this one (`rllm_here`)."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from forked import CommandServer, ForkedProcess

from rllm.cli.main import main

RLLM = "rllm.cli.main"
Rllm = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environ() -> dict[str, str]:
    """Return the environment of the processes. Tests may add to it."""
    return os.environ | {"COLUMNS": "200", "RLLM_BLOCK_PLUGINS": "", "RLLM_DEBUG": "0"}


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
