"""CallStore: rows that are in the store once they are acknowledged."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from rllm_record.calls.reader import CallReader
from rllm_record.calls.rows import DeliveryRow, Row


class CallStore(CallReader):
    """A store of calls: one file, which several processes may write.

    A thread of the store writes. What gathers while it commits is its next commit, so that a commit is shared by all
    who wait: with many writers a row costs a small part of one.
    """

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the store at `path`, or make one, with the folders above it. An older schema is brought to this one.

        Raises:
            StoreError: it cannot be written, it is something else, or a newer rllm-record wrote it.
        """
        raise NotImplementedError

    async def add(self, row: Row) -> None:
        """Return once the commit that holds `row` is on disk. Rows are stored in the order in which they are added.

        Who is cancelled while they wait does not learn whether the row is stored.

        Raises:
            DuplicateError: the store has a session with this id, the session a call with this id, or an end.
            UnknownSessionError: there is no session as the row says.
            SealedError: the session has ended.
            StoreError: it could not be written.
        """
        raise NotImplementedError

    def note(self, row: DeliveryRow) -> None:
        """Store `row` with one of the next commits, without waiting for it. One that cannot be stored is left out.

        Raises:
            StoreError: the store is closed, or `row` cannot be stored.
        """
        raise NotImplementedError

    def prune(self, *, run: str | None = None, before: float | None = None) -> int:
        """Delete sessions with all that belongs to them, and give their space back. Returns how many. Blocks.

        Args:
            run: those of this run. None: of all runs.
            before: those that were opened before, in seconds of Unix time. None: all.

        Raises:
            ValueError: neither `run` nor `before` is given.
            StoreError: they cannot be deleted. A session is deleted whole or not at all.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Wait until everything that was added is stored, then let go of the file."""
        raise NotImplementedError
