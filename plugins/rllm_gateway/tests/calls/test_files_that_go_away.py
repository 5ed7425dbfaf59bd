"""A row is acknowledged only if its file can be found: not if it was deleted, replaced or cut off meanwhile."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from expecting import expect_error

from rllm_gateway.calls import CallReader, CallStore, StoreError

from .made_rows import call, session


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


def test_a_file_that_goes_away_while_rows_are_written_refuses_them(store: CallStore, path: Path) -> None:
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
