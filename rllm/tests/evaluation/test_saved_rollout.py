"""Rollouts as lines, and a file of lines that survives the end of its process."""

from __future__ import annotations

import datetime
import gzip
from pathlib import Path

import numpy as np
import pytest
from expecting import expect_error

from rllm.evaluation.rollouts import FinishedRollout
from rllm.evaluation.saving import MemberFile, read_lines, rollout_from_line, rollout_to_line, task_digest
from rllm_core.data.types import Episode, Task, Trajectory
from rllm_core.errors import RllmError


def test_rollout_reads_back_from_its_line() -> None:
    task = Task(id="t", data={"answer": "2"})
    episode = Episode(id="t:0", trajectories=[Trajectory("agent", reward=0.5)])
    read = rollout_from_line(rollout_to_line(FinishedRollout(task, episode)))
    assert (read.episode.id, read.episode.trajectories[0].reward, read.task) == ("t:0", 0.5, task_digest(task))


def test_digest_depends_on_all_of_a_task() -> None:
    tasks = [Task(id="a", data={"x": 1}), Task(id="b", data={"x": 1}), Task(id="a", data={"x": 2})]
    tasks += [Task(id="a", data={"x": 1}, data_source="y")]
    assert len({task_digest(task) for task in tasks}) == 4
    assert task_digest(Task(id="a", data={"x": 1, "y": 2})) == task_digest(Task(id="a", data={"y": 2, "x": 1}))
    task = Task(id="a", data={"x": np.array([1.5]), "y": datetime.date(2024, 1, 1)})
    assert task_digest(task) == task_digest(Task(id="a", data={"x": [1.5], "y": "2024-01-01"}))


LINES = ["one", "zwei \u00e4", "three" * 1000]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write(tmp_path / "lines.gz", LINES)
    return tmp_path / "lines.gz"


def write(path: Path, lines: list[str]) -> None:
    file = MemberFile(path)
    for line in lines:
        file.append(line)
    file.close()


def test_lines_are_read_as_they_were_written(file: Path) -> None:
    assert [line.rstrip() for line in read_lines(file)] == LINES
    with gzip.open(file, "rt", encoding="utf-8") as unpacked:
        assert [line.rstrip() for line in unpacked] == LINES


def test_truncated_lines_are_written_again(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    for end in range(0, len(whole), 7):
        file.write_bytes(whole[:end])
        kept = [line.rstrip() for line in read_lines(file)]
        assert kept == LINES[: len(kept)]
        write(file, LINES[len(kept) :])
        assert file.read_bytes() == whole


def test_damage_is_no_cut(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[40] ^= 0xFF
    file.write_bytes(content)
    with expect_error(RllmError, "damaged-file"):
        list(read_lines(file))
