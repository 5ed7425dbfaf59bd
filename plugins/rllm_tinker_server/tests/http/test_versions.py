"""One program with the oldest client that the server works with and with the installed one, each in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from tinker_in_process import running_server

from rllm_tinker_server.build import ModelOptions, opened_service

DEADLINE = 100.0
PROGRAM = Path(__file__).with_name("any_client.py")
OLDEST = Path(sys.prefix) / "oldest-tinker"
"""Where the Makefile installs that client; see OLDEST_TINKER there."""

Result = dict[str, Any]
RunProgram = Callable[[Path | None], Result]


@pytest.fixture(scope="module")
def run_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunProgram]:
    """Run the program against a server, with the client of that directory or with the installed one."""
    options = ModelOptions(model="tiny", checkpoints=tmp_path_factory.mktemp("checkpoints"))
    with opened_service(options) as service, running_server(service) as server:

        def run(directory: Path | None) -> Result:
            path = {} if directory is None else {"PYTHONPATH": str(directory)}
            finished = subprocess.run(
                [sys.executable, str(PROGRAM), server.url, "tiny"],
                env={**os.environ, **path, "TINKER_TELEMETRY": "0", "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                timeout=DEADLINE,
                check=False,
            )
            assert finished.returncode == 0, finished.stderr
            found: Result = json.loads(finished.stdout)
            return found

        yield run


@pytest.fixture(scope="module")
def with_installed(run_program: RunProgram) -> Result:
    return run_program(None)


@pytest.fixture(scope="module")
def with_oldest(run_program: RunProgram) -> Result:
    assert OLDEST.is_dir(), f"There is no {OLDEST}: run `make install`, which puts the oldest client there."
    found = run_program(OLDEST)
    (version,) = (one.version for one in distributions(path=[str(OLDEST)]) if one.name == "tinker")
    assert found["version"] == version
    return found


@pytest.mark.long
@pytest.mark.parametrize("client", ["with_oldest", "with_installed"])
def test_a_program_trains_resumes_and_samples(client: str, request: pytest.FixtureRequest) -> None:
    found: Result = request.getfixturevalue(client)
    before, after = found["losses"]
    assert after < before / 2
    assert found["ppo"] < 0
    assert found["half"] < before / 2
    assert found["scored"][0] is None
    assert found["scored"][1:] == pytest.approx(found["trained"], abs=1e-4)
    assert [len(tokens) for tokens, _ in found["samples"]] == [4, 4]


@pytest.mark.long
def test_old_and_new_clients_get_the_same(with_oldest: Result, with_installed: Result) -> None:
    assert with_oldest["version"] != with_installed["version"]
    assert [tokens for tokens, _ in with_oldest["samples"]] == [tokens for tokens, _ in with_installed["samples"]]
    for name in ("losses", "ppo", "half", "trained"):
        assert with_oldest[name] == pytest.approx(with_installed[name], rel=1e-5), name
