"""Directories of tasks: the notice for ignored parts, and hints for files with mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from expecting import expect_error

from rllm.tasks.options import TaskDirectoriesParams
from rllm.tasks.task_directories import TASK_DIRECTORY, TaskDirectories
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError
from rllm_core.notices import forget_warnings

FACTS = """
version = "1.0"
[environment]
memory_mb = 64
cpus = 2
[verifier]
user = "root"
[metadata]
author = "me"
"""


def write(directory: Path, name: str, facts: str = FACTS) -> Path:
    task = directory / name
    files = {"instruction.md": "Work.", "tests/test.sh": "true", "task.toml": facts}
    for path, text in (files | {"environment/Dockerfile": "FROM scratch\nRUN make\n"}).items():
        (task / path).parent.mkdir(parents=True, exist_ok=True)
        (task / path).write_text(text)
    return task


def read(directory: Path) -> list[Task]:
    return list(TaskDirectories.tasks("train", TaskDirectoriesParams(directory=str(directory))))


def test_ignored_parts_of_all_tasks_are_one_notice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        write(tmp_path, name)
    forget_warnings()
    tasks = read(tmp_path)
    (notice,) = capsys.readouterr().err.splitlines()
    assert " environment.cpus, environment/Dockerfile, verifier.user " in notice
    assert tasks[0].data[TASK_DIRECTORY]["memory_mb"] == 64


@pytest.mark.parametrize("file", ["instruction.md", "task.toml"])
def test_hint_is_the_file_with_the_mistake(tmp_path: Path, file: str) -> None:
    (write(tmp_path, "a") / file).write_bytes(b"\xff")
    with expect_error(ConfigError, "bad-task-directory") as caught:
        read(tmp_path)
    assert str(tmp_path / "a" / file) in caught.value.hint
