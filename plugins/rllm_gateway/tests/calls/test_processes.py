"""Processes that are killed, that run out of disk, that share a store."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
from expecting import expect_error

from rllm_gateway.calls import CallReader, CallStore, StoreError

from .made_rows import call, session

WRITES = """
import asyncio, sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from made_rows import call, session
from rllm_gateway.calls import CallStore

async def main(store, name):
    await store.add(session(name))
    print(name, flush=True)
    async def writer(number):
        index = 0
        while True:
            id = f"{number}.{index}"
            await store.add(call(id, name, new=50, sampled=1000))
            print(f"{name} {id}", flush=True)
            index += 1
    await asyncio.gather(*(writer(number) for number in range(8)))

asyncio.run(main(CallStore.open(Path(sys.argv[1])), sys.argv[2]))
"""
"""Program that writes the session of a name without end, and prints the acknowledged rows."""


@contextmanager
def running(path: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WRITES, str(path), name, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_of(process: subprocess.Popen[str], most: int | None = None) -> list[str]:
    """The next lines of its output, or all until it ends. An unfinished line is none."""
    assert process.stdout is not None
    return [line.removesuffix("\n") for line in islice(process.stdout, most) if line.endswith("\n")]


def require_all_stored(path: Path, name: str, acknowledged: list[str]) -> None:
    """Make sure that what was acknowledged is there, and that what is there is whole."""
    with CallReader.open(path) as reader:
        stored = reader.calls(name)
        reader.require_whole()
    assert {f"{name} {row.id}" for row in stored} >= set(acknowledged) - {name}
    assert {(len(row.new_ids), len(row.response_ids)) for row in stored} <= {(50, 1000)}


@pytest.mark.parametrize(
    "times", [pytest.param(3, marks=pytest.mark.smoke), pytest.param(100, marks=pytest.mark.nightly)]
)
def test_no_acknowledged_row_of_killed_writers_is_lost(path: Path, times: int) -> None:
    """Kill one writer after another at random instants, each with what those before it left."""
    rows = random.Random(times)
    for turn in range(times):
        with running(path, name := f"s{turn}") as process:
            acknowledged = lines_of(process, rows.randrange(1, 300))
            process.kill()
            # What it had said when it died counts as well.
            acknowledged += lines_of(process)
        assert acknowledged[:1] == [name]
        require_all_stored(path, name, acknowledged)


def test_a_full_disk_refuses_rows_and_loses_none(store: CallStore, path: Path) -> None:
    disk = store._writer._connection

    async def main() -> list[str]:
        stored: list[str] = []
        await store.add(session())
        disk.execute("PRAGMA max_page_count = 50")
        with expect_error(StoreError, "store-failed", path):
            for number in range(1000):
                await store.add(call(str(number), new=1000, sampled=1000))
                stored.append(str(number))
        disk.execute("PRAGMA max_page_count = 1000000")
        await store.add(call("after"))
        return stored

    stored = asyncio.run(main())
    assert len(stored) > 1
    with CallReader.open(path) as reader:
        assert [row.id for row in reader.calls("s")] == [*stored, "after"]
        reader.require_whole()


def test_a_reader_keeps_no_writer_waiting(path: Path) -> None:
    CallStore.open(path).close()
    with CallReader.open(path) as reader, reader._reading():
        # From its first look on it sees one instant.
        assert reader._rows("sessions", "id", "s") == []
        with running(path, "s") as process:
            assert len(lines_of(process, 100)) == 100
        assert reader._rows("sessions", "id", "s") == []
