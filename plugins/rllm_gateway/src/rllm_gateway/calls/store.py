"""CallStore: rows that are in the store once they are acknowledged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

from rllm_gateway.calls.encoding import encoded
from rllm_gateway.calls.opening import connect_to_read
from rllm_gateway.calls.pruning import prune
from rllm_gateway.calls.reader import CallReader
from rllm_gateway.calls.rows import DeliveryRow, Row
from rllm_gateway.calls.writer import GroupWriter


class CallStore(CallReader):
    """A store of calls: one file, which several processes may write.

    A thread of the store writes. What gathers while it commits is its next commit, so that a commit is shared by all
    who wait: with many writers a row costs a small part of one.
    """

    _writer: GroupWriter

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the store at `path`, or make one, with the folders above it. An older schema is brought to this one.

        Raises:
            StoreError: it cannot be written, it is something else, or a newer rllm-record wrote it.
        """
        writer = GroupWriter(path)
        try:
            store = cls(path, connect_to_read(path))
        except BaseException:
            writer.close()
            raise
        store._writer = writer
        return store

    async def add(self, row: Row) -> None:
        """Return once the commit that holds `row` is on disk. Rows are stored in the order in which they are added.

        Who is cancelled while they wait does not learn whether the row is stored.

        Raises:
            DuplicateError: the store has a session with this id, the session a call with this id, or an end.
            UnknownSessionError: there is no session as the row says, or, for a delivery, no call.
            SealedError: the session has ended.
            StoreError: it could not be written.
        """
        future = asyncio.get_running_loop().create_future()
        self._writer.submit(encoded(row), future)
        await future

    def note(self, row: DeliveryRow) -> None:
        """Store `row` with one of the next commits, without waiting for it. One that cannot be stored is left out.

        Raises:
            StoreError: the store is closed, or `row` cannot be stored.
        """
        self._writer.submit(encoded(row), None)

    def prune(self, *, run: str | None = None, before: float | None = None) -> int:
        """Delete sessions with all that belongs to them, and give their space back. Returns how many. Blocks.

        Args:
            run: those of this run. None: of all runs.
            before: those that were opened before, in seconds of Unix time. None: all.

        Raises:
            ValueError: neither `run` nor `before` is given.
            StoreError: they cannot be deleted. A session is deleted whole or not at all.
        """
        return prune(self._path, run, before)

    def close(self) -> None:
        """Wait until everything that was added is stored, then let go of the file."""
        # The last connection that is closed clears the log away, and a reading one cannot.
        super().close()
        self._writer.close()
