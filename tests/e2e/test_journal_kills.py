"""Asynchronous runs of the demo that are killed and resumed: `benchmarks/journal.py kills`, a few of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "journal.py"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_runs_that_were_killed_end_as_they_would_have(tmp_path: Path) -> None:
    # A new process is needed, because MKL reads its settings once.
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "kills", "4"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.rpartition(", ")[2] for line in done.stdout.splitlines()] == ["0 faults", "0 faults"]
