"""What tests of several distributions use: ``rllm`` as its users run it."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

TESTS_BETWEEN_COLLECTIONS = 200
_finished_tests = itertools.count()


def pytest_runtest_setup() -> None:
    """Take what is alive now out of the garbage collector's sight.

    It looked through the modules and all collected tests again and again: 0.3 s at the start of every training.
    Whatever has become garbage meanwhile is collected now and then.
    """
    if next(_finished_tests) % TESTS_BETWEEN_COLLECTIONS == 0:
        gc.unfreeze()
        gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """What must not be left behind is found after the last test, among everything."""
    gc.unfreeze()


@pytest.fixture(scope="module")
def without_picture() -> Iterator[None]:
    """Runs draw no reward curve: a third of the time of a short one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rllm_trackers.report.draw_reward_curve", lambda *_: None)
        yield


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
            timeout=200,
        )

    return run
