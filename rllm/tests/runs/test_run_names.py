"""Names of runs that the user did not name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rllm.config.saved_config import save_config
from rllm.training.starting import latest_name, name_stem, next_name
from rllm_core.schema.run_sections import NO_ENVIRONMENT


def make_runs(project: Path, *runs: tuple[str, str]) -> None:
    """Make directories of runs (name, environment) that started in this order."""
    for second, (name, environment) in enumerate(runs):
        (project / name).mkdir(parents=True)
        save_config({"rllm": {"env": {"name": environment}}}, project / name)
        (project / name / "plugins.json").touch()
        os.utime(project / name / "plugins.json", (second, second))


def test_number_is_the_next_of_the_environment(tmp_path: Path) -> None:
    assert next_name(tmp_path / "none", "guess") == "guess-1"
    for name in ("guess-2", "guess-10", "guess-20261129", "guess-x", "my-guess-30", "sum-40"):
        (tmp_path / name).mkdir()
    assert next_name(tmp_path, "guess") == "guess-11"
    assert next_name(tmp_path, NO_ENVIRONMENT) == "run-1"


def test_latest_run_of_the_environment_started_last(tmp_path: Path) -> None:
    assert latest_name(tmp_path / "none", "guess") is None
    make_runs(tmp_path, ("guess-2", "guess"), ("guess-1", "guess"), ("mine", "guess"), ("sum-1", "sum"))
    (tmp_path / "guess-3").mkdir()  # Its start failed.
    assert latest_name(tmp_path, "guess") == "guess-1"
    assert latest_name(tmp_path, NO_ENVIRONMENT) == "sum-1"


def test_unnamed_run_of_an_earlier_build_counts(tmp_path: Path) -> None:
    make_runs(tmp_path, ("default", "guess"))
    assert (latest_name(tmp_path, "guess"), latest_name(tmp_path, "sum")) == ("default", None)


@pytest.mark.parametrize(
    ("environment", "stem"),
    [
        ("rllm/guess", "guess"),
        ("reasoning_gym:chain_sum", "reasoning_gym-chain_sum"),
        ("gymnasium:FrozenLake-v1", "gymnasium-FrozenLake-v1"),
        ("inspect:../my sums.py@sums", "inspect-my-sums-py-sums"),
        ("verifiers:owner/world", "verifiers-owner-world"),
        ("::", "run"),
    ],
)
def test_stem_is_a_file_name(environment: str, stem: str) -> None:
    assert name_stem(environment) == stem
