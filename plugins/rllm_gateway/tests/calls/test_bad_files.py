"""Files at the path of a store: other files, older or damaged stores, and files that are lost during a run."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from expecting import expect_error

from rllm_gateway.calls import CallReader, CallStore, StoreError, tables

from .made_rows import call, reward, session

BOTH = pytest.mark.parametrize("open_store", [CallStore.open, CallReader.open], ids=["store", "reader"])
Open = Callable[[Path], CallReader]
CALLS = 400


@pytest.fixture(scope="module")
def closed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with two sessions of many calls."""
    path = tmp_path_factory.mktemp("written") / "calls.sqlite"

    async def main() -> None:
        with CallStore.open(path) as store:
            await asyncio.gather(store.add(session("s")), store.add(session("t")))
            rows = [call(str(number), "st"[number >= CALLS // 2], new=20, sampled=200) for number in range(CALLS)]
            await asyncio.gather(*map(store.add, rows))
            await store.add(reward())

    asyncio.run(main())
    return path


@pytest.fixture
def copied(closed_store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(closed_store, tmp_path / "calls.sqlite"))


def test_store_is_made_with_its_parent_directories(tmp_path: Path) -> None:
    with CallStore.open(tmp_path / "a" / "b" / "ü ?mode=memory#%20") as store:
        assert store.sessions() == []
    assert [file.name for file in (tmp_path / "a" / "b").iterdir()] == ["ü ?mode=memory#%20"]


def test_stores_that_are_made_at_once_are_one(path: Path) -> None:
    def write(name: str) -> None:
        with CallStore.open(path) as store:
            asyncio.run(store.add(session(name)))

    threads = [Thread(target=write, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    with CallReader.open(path) as reader:
        assert len(reader.sessions()) == 8
    assert list(path.parent.glob("*.tmp")) == []


def make_other_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE calls (id)")


@BOTH
@pytest.mark.parametrize(
    ("make", "code"),
    [
        (Path.mkdir, "not-a-file"),
        (os.mkfifo, "not-a-file"),
        (Path.touch, "wrong-file-type"),
        (lambda path: path.write_bytes(b"# Notes\n" * 1000), "damaged-store"),
        (make_other_database, "wrong-file-type"),
    ],
    ids=["directory", "pipe", "empty", "text", "other database"],
)
def test_other_files_are_rejected_and_unchanged(path: Path, open_store: Open, make: Any, code: str) -> None:
    make(path)
    content = path.read_bytes() if path.is_file() else b""

    with expect_error(StoreError, code):
        open_store(path)

    assert not path.is_file() or path.read_bytes() == content


def test_log_of_a_removed_store_is_not_reused(path: Path) -> None:
    path.with_name(f"{path.name}-wal").write_bytes(b"frames")

    with expect_error(StoreError, "damaged-store"):
        CallStore.open(path)


@BOTH
@pytest.mark.parametrize("version", [tables.VERSION - 1, tables.VERSION + 1])
def test_a_different_schema_is_rejected(copied: Path, open_store: Open, version: int) -> None:
    with closing(sqlite3.connect(copied)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")

    with expect_error(StoreError, "schema-too-new", version, "rllm-gateway"):
        open_store(copied)


def test_damage_in_a_record_is_that_record(copied: Path) -> None:
    content = bytearray(copied.read_bytes())
    content[content.index(call(new=20, sampled=200).response_ids.tobytes()) + 400] ^= 0x55
    copied.write_bytes(content)

    with CallReader.open(copied) as reader:
        with expect_error(StoreError, "damaged-store", "calls"):
            reader.calls("s")
        assert len(reader.calls("t")) == CALLS // 2


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def move_back_and_forth(path: Path) -> None:
    copy = Path(shutil.copy(path, path.with_name("copy")))
    copy.replace(path)


LOSSES: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "replaced": move_back_and_forth,
    "directory moved": lambda path: path.parent.rename(path.parent.with_name("elsewhere")),
    "cut off": lambda path: os.truncate(path, 0),
    "cut in the middle": lambda path: os.truncate(path, path.stat().st_size // 2),
    "log deleted": lambda path: log_of(path).unlink(),
    "log cut off": lambda path: os.truncate(log_of(path), 0),
    "shared memory deleted": lambda path: path.with_name(f"{path.name}-shm").unlink(),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_row_whose_file_is_lost_is_refused(loss: str, tmp_path: Path) -> None:
    path = tmp_path / "directory" / "calls.db"

    async def fill() -> None:
        with CallStore.open(path) as store:
            await store.add(session())
            for number in range(100):
                await store.add(call(f"before {number}", new=20, sampled=200))

    async def main() -> None:
        store = CallStore.open(path)
        await store.add(session("other"))
        LOSSES[loss](path)
        for number in range(2):
            with expect_error(StoreError, "store-replaced"):
                await store.add(call(f"after {number}"))
        store.close()

    asyncio.run(fill())
    asyncio.run(main())


def test_rows_for_a_removed_file_are_rejected(store: CallStore, path: Path) -> None:
    async def main() -> None:
        await store.add(session())
        insert = store._writer._insert
        store._writer._insert = lambda records: (path.unlink(), insert(records))[1]  # type: ignore[method-assign]
        with pytest.raises(StoreError, match="deleted or replaced"):
            await store.add(call())

    asyncio.run(main())


def test_a_store_works_while_another_process_prunes(path: Path) -> None:
    async def main() -> None:
        with CallStore.open(path) as store:
            await store.add(session("old", opened=1.0))
            for number in range(50):
                await store.add(call(str(number), "old", new=2000, sampled=2000))
        with CallStore.open(path) as store:
            await store.add(session("new"))
            before = path.stat().st_size
            assert store.prune(before=2.0) == 1
            await store.add(call("a", "new"))
            # The log's pages go into the file, which becomes shorter.
            store._writer._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            assert path.stat().st_size < before
            await store.add(call("b", "new"))

    asyncio.run(main())
    with CallReader.open(path) as reader:
        assert [row.id for row in reader.calls("new")] == ["a", "b"]
        assert len(reader.sessions()) == 1
