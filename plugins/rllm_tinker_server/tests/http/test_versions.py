"""A program with the oldest client that the server works with, in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import distributions, version
from pathlib import Path

import pytest
from tinker_in_process import tiny_server

DEADLINE = 100.0
PROGRAM = Path(__file__).with_name("any_client.py")
OLDEST = Path(sys.prefix) / "oldest-tinker"
"""Where the Makefile installs that client; see OLDEST_TINKER there."""


@pytest.mark.smoke
def test_oldest_client_trains_resumes_and_samples(tmp_path: Path) -> None:
    assert OLDEST.is_dir(), f"There is no {OLDEST}: run `make install`, which puts the oldest client there."
    environ = {**os.environ, "PYTHONPATH": str(OLDEST), "TINKER_TELEMETRY": "0", "OMP_NUM_THREADS": "1"}
    with tiny_server(tmp_path) as server:
        command = [sys.executable, str(PROGRAM), server.url, "tiny"]
        ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    (oldest,) = (one.version for one in distributions(path=[str(OLDEST)]) if one.name == "tinker")
    assert found["version"] == oldest != version("tinker")
    before, after = found["losses"]
    assert after < before / 2
    assert found["ppo"] < 0
    assert found["half"] < before / 2
    assert found["scored"][0] is None
    assert found["scored"][1:] == pytest.approx(found["trained"], abs=1e-4)
    assert [len(tokens) for tokens, _ in found["samples"]] == [4, 4]
