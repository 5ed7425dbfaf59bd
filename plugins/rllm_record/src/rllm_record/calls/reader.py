"""CallReader: what a store of calls holds, also while other processes write it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from rllm_record.calls.damage import Damage
from rllm_record.calls.rows import CallRow
from rllm_record.calls.session import SessionSummary, StoredSession


class CallReader:
    """Reads a store. Each method sees the store at one instant, blocks, and may be called in any thread.

    A reader never keeps a writer waiting.
    """

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a store for reading.

        Raises:
            StoreError: there is none at `path`, it cannot be read, or a newer rllm-record wrote it.
        """
        raise NotImplementedError

    def sessions(self, run: str | None = None) -> list[SessionSummary]:
        """Sessions of a run, or of all, in the order in which they were opened.

        Raises:
            StoreError: they cannot be read.
        """
        raise NotImplementedError

    def session(self, session: str) -> StoredSession:
        """A session, its calls, rewards and end.

        Raises:
            UnknownSessionError: there is no such session.
            DamagedError: a row of it is not what was written.
            StoreError: it cannot be read.
        """
        raise NotImplementedError

    def calls(self, session: str) -> tuple[CallRow, ...]:
        """Calls of a session, in the order in which they were stored. Raises as `session` does."""
        return self.session(session).calls

    def session_of_key(self, key_hash: str) -> SessionSummary | None:
        """The session that was opened with this hash of a key; None: there is none.

        Raises:
            StoreError: it cannot be read.
        """
        raise NotImplementedError

    def check(self) -> list[Damage]:
        """Read every record and compare it with its digest. Empty: nothing is damaged.

        Raises:
            StoreError: the store cannot be read at all.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the file."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
