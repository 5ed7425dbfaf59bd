"""Processes that are killed, that run out of disk, that share a store."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rllm_gateway.calls import CallReader, CallStore

from .writing import UNTIL_FULL, WRITE_FOR_EVER, start


@contextmanager
def running(program: str, path: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    with start(program, path, name) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_of(process: subprocess.Popen[str], most: int) -> list[str]:
    """The next lines of its output: fewer than `most` where it ends."""
    assert process.stdout is not None
    lines = (process.stdout.readline() for _ in range(most))
    return [line.removesuffix("\n") for line in lines if line.endswith("\n")]


def rest_of(process: subprocess.Popen[str]) -> list[str]:
    """Lines of its output until it ends; one that it did not finish is none."""
    assert process.stdout is not None
    return [line.removesuffix("\n") for line in process.stdout if line.endswith("\n")]


def require_all_stored(path: Path, name: str, acknowledged: list[str]) -> None:
    """Make sure that what was acknowledged is there, and that what is there is whole."""
    with CallReader.open(path) as reader:
        stored = reader.calls(name)
        reader.require_whole()
    assert {f"{name} {row.id}" for row in stored} >= set(acknowledged) - {name}
    assert {(len(row.new_ids), len(row.response_ids)) for row in stored} <= {(50, 1000)}


def kill_writers(path: Path, times: int) -> None:
    """Kill one writer after another at random instants, each with what those before it left."""
    rows = random.Random(times)
    for turn in range(times):
        with running(WRITE_FOR_EVER, path, name := f"s{turn}") as process:
            acknowledged = lines_of(process, rows.randrange(1, 300))
            process.kill()
            # What it had said when it died counts as well.
            acknowledged += rest_of(process)
        assert acknowledged[:1] == [name]
        require_all_stored(path, name, acknowledged)


@pytest.mark.parametrize(
    "times", [pytest.param(3, marks=pytest.mark.smoke), pytest.param(100, marks=pytest.mark.nightly)]
)
def test_no_acknowledged_row_of_killed_writers_is_lost(path: Path, times: int) -> None:
    kill_writers(path, times)


def test_a_full_disk_refuses_rows_and_loses_none(path: Path) -> None:
    with running(UNTIL_FULL, path, "s") as process:
        *acknowledged, refused, after = rest_of(process)
        assert process.wait() == 0

    assert refused.startswith("s refused ")
    assert str(path) in refused
    assert after == "s after"
    with CallReader.open(path) as reader:
        assert [f"s {row.id}" for row in reader.calls("s")] == [*acknowledged, after]
        reader.require_whole()


def test_a_reader_keeps_no_writer_waiting(path: Path) -> None:
    CallStore.open(path).close()
    with CallReader.open(path) as reader, reader._reading():
        # From its first look on it sees one instant.
        assert reader._rows("sessions", "id", "s") == []
        with running(WRITE_FOR_EVER, path, "s") as process:
            assert len(lines_of(process, 100)) == 100
        assert reader._rows("sessions", "id", "s") == []
