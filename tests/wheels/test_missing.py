"""One error lists all missing packages of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from expecting import check_printed

from .environments import Environment

pytestmark = pytest.mark.xdist_group("missing")


@pytest.fixture(scope="module")
def bare(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with the program, and rllm-tinker without its requirements."""
    environment = Environment.make(tmp_path_factory.mktemp("bare") / "venv", dist, ["rllm"])
    environment.install_from(dist, ["--no-deps", "rllm-tinker"])
    return environment


def test_a_run_names_all_that_is_missing(bare: Environment, tmp_path: Path) -> None:
    done = bare.run(["rllm", "train", "sum", "rllm/backend=tinker", "tinker_base_url=local"], tmp_path)

    assert done.returncode == 2
    line, hint = done.stderr.splitlines()
    for name in ("tinker,", "rllm-tinker-server"):
        assert name in line
    assert hint.startswith("hint: ")
    assert hint.endswith("pip install 'rllm-tinker[local]'")


def test_a_server_names_the_first_missing_package(dist: Path, tmp_path: Path) -> None:
    environment = Environment.make(tmp_path / "venv", dist, ["rllm"])
    environment.install_from(dist, ["--no-deps", "rllm-tinker-server"])
    done = environment.run(["rllm", "tinker", "serve", "--model", "tiny"], tmp_path)

    assert done.returncode == 2
    check_printed(done.stderr, "missing-package", "needs tinker, ", "pip install rllm-tinker-server\n")


def test_missing_command_names_its_distribution(bare: Environment, tmp_path: Path) -> None:
    done = bare.run(["rllm", "tinker", "serve", "--model", "tiny"], tmp_path)

    assert done.returncode == 2
    check_printed(done.stderr, "plugin-not-installed", "'tinker'", "pip install rllm-tinker-server\n")


def test_the_doctor_names_them_too(bare: Environment, tmp_path: Path) -> None:
    done = bare.run(["rllm", "plugins", "doctor"], tmp_path)

    assert done.returncode == 1
    check_printed(done.stdout, "missing-package", "rllm-tinker: ", "tinker<0.39,>=0.38")
