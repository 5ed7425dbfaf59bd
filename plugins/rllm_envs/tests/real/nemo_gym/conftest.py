"""A server of NeMo-Gym, started by `make test-envs`: it is installed in its own directory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

SERVER = Path(__file__).with_name("serve_counter.py")
SECONDS_TO_START = 120.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nemo-gym", required=True, help="Directory in which NeMo-Gym is installed.")


@pytest.fixture(scope="session")
def gym_directory(request: pytest.FixtureRequest) -> Path:
    return Path(request.config.getoption("--nemo-gym"))


@pytest.fixture(scope="session")
def counter(gym_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of NeMo-Gym's `example_session_state_mgmt`: a counter for each session."""
    files = tmp_path_factory.mktemp("server")
    port_file = files / "port"
    with (files / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, SERVER, port_file],
            env={**os.environ, "PYTHONPATH": str(gym_directory)},
            cwd=files,
            stdout=log,
            stderr=log,
        )
    try:
        url = _wait(server, port_file)
        yield url
    finally:
        server.terminate()
        server.wait(30)


def _wait(server: subprocess.Popen[bytes], port_file: Path) -> str:
    end = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < end:
        assert server.poll() is None, (port_file.parent / "log").read_text()
        if port_file.exists() and port_file.read_text():
            url = f"http://127.0.0.1:{port_file.read_text()}"
            try:
                httpx.get(url, timeout=5)
            except httpx.HTTPError:
                pass
            else:
                return url
        time.sleep(0.2)
    raise AssertionError((port_file.parent / "log").read_text())
