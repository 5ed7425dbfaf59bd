"""What tests of several distributions use: ``rllm`` as its users run it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def rllm(tmp_path: Path) -> Run:
    """Runs ``rllm`` with warnings as errors; `program` replaces it, for looking at the process from inside."""

    def run(*arguments: str, program: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        program = program or "import sys; from rllm_core.cli.main import main; sys.exit(main())"
        blocked = {"RLLM_BLOCK_PLUGINS": "rllm-local,rllm-envs", "RLLM_DEBUG": "", "COLUMNS": "80"}
        path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", program, *arguments],
            env={**os.environ, **blocked, "PYTHONPATH": path, **environ},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run
