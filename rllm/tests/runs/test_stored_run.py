"""A run directory whose `output_dir` is a URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error
from fsspec.implementations.memory import MemoryFileSystem

from rllm.runs.run_directory import RunDirectory, find_stored_runs, run_directory_path
from rllm.training.starting import latest_name, next_name
from rllm_core.errors import ConfigError, RllmError
from rllm_core.schema.run_sections import TrainerSection
from rllm_record.store.places import CACHE_VARIABLE

TRAINER = TrainerSection(output_dir="memory://bucket/runs", project_name="p", experiment_name="guess-1")
STORED = "/bucket/runs/p/guess-1/"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that continues on a machine with a name."""

    def use(name: str) -> None:
        monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / name))

    MemoryFileSystem.store.clear()
    use("a")
    yield use
    MemoryFileSystem.store.clear()


def train(directory: RunDirectory, steps: range) -> None:
    directory.begin({"rllm": {"env": {"name": "guess"}}}, [], 9)
    for step in steps:
        directory.log(step, {"reward": 1.0})
    directory.close()


def test_run_is_resumed_on_another_machine(machine: Any, tmp_path: Path) -> None:
    directory = RunDirectory.open(TRAINER)
    assert directory.url == "memory://bucket/runs/p/guess-1"
    assert directory.path == tmp_path / "a/runs/memory/bucket/runs/p/guess-1"
    train(directory, range(3))
    assert MemoryFileSystem().cat(f"{STORED}metrics.jsonl") == (directory.path / "metrics.jsonl").read_bytes()

    machine("b")
    project = run_directory_path(TRAINER).parent
    find_stored_runs(TRAINER)
    assert next_name(project, "guess") == "guess-2"
    assert latest_name(project, "guess") == "guess-1"
    with expect_error(ConfigError, "run-exists", "--resume"):
        RunDirectory.open(TRAINER)
    directory = RunDirectory.open(TRAINER, resume=True)
    assert [line["step"] for line in directory.history()] == [0, 1, 2]
    train(directory, range(3, 5))
    assert len(MemoryFileSystem().cat(f"{STORED}metrics.jsonl").splitlines()) == 5


def test_replaced_run_disappears_from_the_store(machine: Any) -> None:
    train(RunDirectory.open(TRAINER), range(3))
    MemoryFileSystem().pipe_file(f"{STORED}checkpoints/step_000002/manifest.json", b"{}")
    machine("b")
    find_stored_runs(TRAINER)
    train(RunDirectory.open(TRAINER, overwrite=True), range(1))
    names = {name.removeprefix(STORED) for name in MemoryFileSystem().find(STORED)}
    assert names == {".writer.json", "config.yaml", "length.json", "metrics.jsonl", "plugins.json"}
    assert len(MemoryFileSystem().cat(f"{STORED}metrics.jsonl").splitlines()) == 1


def test_failure_of_the_store_leaves_no_directory(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("no such bucket")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", fail)
    with expect_error(RllmError, "service-unreachable", "memory://bucket/runs/p/guess-1", "no such bucket"):
        RunDirectory.open(TRAINER)
    # Otherwise the next name would be tried, without end.
    assert not run_directory_path(TRAINER).exists()


def test_run_that_does_not_begin_changes_nothing(machine: Any) -> None:
    RunDirectory.open(TRAINER).close()
    assert MemoryFileSystem().find("/bucket") == []
    train(RunDirectory.open(TRAINER), range(1))
    before = MemoryFileSystem().find(STORED)
    machine("b")
    find_stored_runs(TRAINER)
    RunDirectory.open(TRAINER, overwrite=True).close()
    assert MemoryFileSystem().find(STORED) == before
