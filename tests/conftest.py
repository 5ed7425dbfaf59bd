"""Runs the real `rllm` command in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

SMALL = (
    "rllm.rollout.n=4",
    "rllm.rollout.n_val=1",
    "rllm.trainer.val_before_train=false",
    "rllm.trainer.test_freq=10",
    "rllm.trainer.save_freq=5",
)
"""A few games per step: what is tested is the machinery, not whether it learns."""

Rllm = Callable[..., "subprocess.CompletedProcess[str]"]
StartRllm = Callable[..., "subprocess.Popen[str]"]


def command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "rllm_core.cli.main", *words]


@pytest.fixture
def environ() -> dict[str, str]:
    """The environment of the processes; tests may add to it."""
    return os.environ | {"COLUMNS": "200", "RLLM_BLOCK_PLUGINS": "", "RLLM_DEBUG": "0"}


@pytest.fixture
def rllm(tmp_path: Path, environ: dict[str, str]) -> Rllm:
    """Run `rllm WORDS` in an empty folder and wait for it."""

    def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(words), cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=100, **options
        )

    return run


@pytest.fixture
def start_rllm(tmp_path: Path, environ: dict[str, str]) -> StartRllm:
    """Start `rllm WORDS` in an empty folder."""

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command(words), cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start
