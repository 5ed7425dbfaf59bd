"""Distributions and environments, each made once per test run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from build_distributions import build

from .environments import Environment, lowest, packages

ON_THIS_MACHINE = (
    "rllm[math]",
    "rllm-data",
    "rllm-envs[gymnasium,open-spiel,reasoning-gym,textarena]",
    "rllm-tinker[local]",
)
WITH_EXTRAS = {
    "rllm": ["math"],
    "rllm-core": ["torch"],
    "rllm-data": [],
    "rllm-envs": ["gymnasium", "open-spiel", "reasoning-gym", "textarena"],
    "rllm-local": [],
    "rllm-record": [],
    "rllm-serving": ["http"],
    "rllm-tinker": ["local"],
    "rllm-view": [],
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--built", type=Path, help="The directory of built distributions; they are built where it is missing."
    )


@pytest.fixture(scope="session")
def dist(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the wheel and the sdist of every distribution."""
    given: Path | None = pytestconfig.getoption("--built")
    if given is not None:
        return given.resolve()
    directory = tmp_path_factory.mktemp("dist")
    build(directory)
    return directory


@pytest.fixture(scope="session")
def latest(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with the newest release of every package."""
    return Environment.make(tmp_path_factory.mktemp("latest") / "venv", dist, ON_THIS_MACHINE)


@pytest.fixture(scope="session")
def oldest(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with the lowest required versions."""
    requirements = [*ON_THIS_MACHINE, *lowest(dist, WITH_EXTRAS)]
    directory = tmp_path_factory.mktemp("oldest") / "venv"
    return Environment.make(directory, dist, requirements, "--resolution", "lowest-direct")


@pytest.fixture(scope="session")
def with_line(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Environment]:
    """Return a function that makes an install line's environment, once for all lines with the same packages."""
    made: dict[str, Environment] = {}

    def environment(line: tuple[str, ...]) -> Environment:
        key = packages(line)
        if key not in made:
            made[key] = Environment.make(tmp_path_factory.mktemp("line") / "venv", dist, line)
        return made[key]

    return environment
