"""Files at the path of a store: none, a different file, an older or newer store, a damaged store."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import pytest
from expecting import expect_error

from rllm_gateway.calls import CallReader, CallStore, StoreError, tables

from .made_rows import call, reward, session

BOTH = pytest.mark.parametrize("open_store", [CallStore.open, CallReader.open], ids=["store", "reader"])
Open = Callable[[Path], CallReader]
CALLS = 400
NOBODY = 65534
LEAF_OF_TABLE, CELL_COUNT = 13, 3
"""Offsets in a page of SQLite: its first byte, and two others."""


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


@pytest.fixture
def no_privileges() -> Iterator[None]:
    """Run as a user for whom file permissions apply."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    yield
    os.seteuid(before)


@pytest.fixture
def forbidden(closed_store: Path, no_privileges: None) -> Iterator[Path]:
    """A store without permissions, in a directory that all users can read."""
    before = os.geteuid()
    os.seteuid(os.getuid())
    with TemporaryDirectory() as directory:
        path = Path(shutil.copy(closed_store, Path(directory) / "calls.sqlite"))
        Path(directory).chmod(0o755)
        path.chmod(0)
        os.seteuid(before)
        yield path
        os.seteuid(os.getuid())
    os.seteuid(before)


def test_a_reader_makes_no_store(path: Path) -> None:
    with expect_error(StoreError, "store-not-found"):
        CallReader.open(path)
    assert not path.exists()


def test_a_store_is_made_with_the_directories_above_it(tmp_path: Path) -> None:
    with CallStore.open(tmp_path / "a" / "b" / "c") as store:
        assert store.sessions() == []
    assert [file.name for file in (tmp_path / "a" / "b").iterdir()] == ["c"]


def test_a_path_may_contain_url_characters(tmp_path: Path) -> None:
    with CallStore.open(tmp_path / "ü ?mode=memory#%20") as store:
        assert store.sessions() == []
    assert [file.name for file in tmp_path.iterdir()] == ["ü ?mode=memory#%20"]


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


@BOTH
def test_a_directory_is_refused(tmp_path: Path, open_store: Open) -> None:
    with expect_error(StoreError, "not-a-file"):
        open_store(tmp_path)


@BOTH
def test_store_pipe_is_rejected(tmp_path: Path, open_store: Open) -> None:
    os.mkfifo(tmp_path / "calls.sqlite")
    with expect_error(StoreError, "not-a-file"):
        open_store(tmp_path / "calls.sqlite")


@BOTH
@pytest.mark.parametrize("content", [b"", b"# Notes\n" * 1000], ids=["empty", "text"])
def test_other_files_are_rejected_and_unchanged(path: Path, open_store: Open, content: bytes) -> None:
    path.write_bytes(content)

    with pytest.raises(StoreError):
        open_store(path)

    assert path.read_bytes() == content


@BOTH
def test_other_databases_are_rejected_and_unchanged(path: Path, open_store: Open) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE calls (id)")
    content = path.read_bytes()

    with expect_error(StoreError, "wrong-file-type"):
        open_store(path)

    assert path.read_bytes() == content


def test_a_directory_without_permission_is_named(no_privileges: None) -> None:
    with expect_error(StoreError, "not-writable", "/calls"):
        CallStore.open(Path("/calls"))


@BOTH
def test_a_file_without_permission_is_named(open_store: Open, no_privileges: None, forbidden: Path) -> None:
    with pytest.raises(StoreError):
        open_store(forbidden)


def test_the_log_of_a_store_that_is_gone_is_not_taken_over(path: Path) -> None:
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


def pages_of(path: Path) -> tuple[int, int]:
    """Size and number of the pages of a closed store."""
    with closing(sqlite3.connect(path)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (number,) = connection.execute("PRAGMA page_count").fetchone()
    return size, number


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 0x55]))


def as_text(reader: CallReader, name: str) -> list[str]:
    return [f"{row.id} {row.response_ids.tolist()} {row.response} {row.sent}" for row in reader.calls(name)]


def test_damage_in_a_record_is_that_record(copied: Path) -> None:
    needle = call(new=20, sampled=200).response_ids.tobytes()
    flip(copied, copied.read_bytes().index(needle) + 400)

    with CallReader.open(copied) as reader:
        with expect_error(StoreError, "damaged-store", "calls"):
            reader.calls("s")
        assert len(reader.calls("t")) == CALLS // 2


@pytest.mark.long
def test_a_flipped_byte_in_any_page_is_reported_or_changes_nothing(closed_store: Path, tmp_path: Path) -> None:
    """Nobody is given what was not written."""
    with CallReader.open(closed_store) as reader:
        whole = {name: as_text(reader, name) for name in ("s", "t")}
    size, number = pages_of(closed_store)
    places = [(page, offset) for page in range(1, number, 20) for offset in (0, 3, 4, 9, 40, 2000, 4095)]
    reported = 0
    for page, offset in places:
        copied = Path(shutil.copy(closed_store, tmp_path / "calls.sqlite"))
        flip(copied, page * size + offset)
        try:
            with CallReader.open(copied) as reader:
                reader.require_whole()
                found = {name: as_text(reader, name) for name in ("s", "t")}
        except StoreError:
            reported += 1
            continue
        assert found == whole, f"page {page}, byte {offset}"
    assert reported > len(places) / 4
