"""The store, as sessions write it: deliveries wait for a commit that somebody waits for anyway."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from rllm_gateway.calls import CallStore, DeliveryRow, Row, StoreError

SECONDS_BETWEEN_NOTES = 1.0
"""Longest that a delivery waits where nothing else is stored. A commit of its own would hold up the next call."""


class RowLog:
    """Lives on one event loop."""

    def __init__(self, store: CallStore | Path) -> None:
        """`store`: a path is opened with the first row. Until then a run may remove the one that it replaces."""
        self._store = store
        self._notes = list[DeliveryRow]()
        self._flushing: asyncio.TimerHandle | None = None

    async def add(self, *rows: Row) -> None:
        """Return once all rows are on disk. Raises StoreError."""
        self.flush()
        store = self._store = CallStore.open(self._store) if isinstance(self._store, Path) else self._store
        if len(rows) == 1:
            await store.add(rows[0])
        else:
            await asyncio.gather(*(store.add(row) for row in rows))

    def note(self, row: DeliveryRow) -> None:
        """Store it soon."""
        self._notes.append(row)
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(SECONDS_BETWEEN_NOTES, self.flush)

    def flush(self) -> None:
        """Hand what waits to the store; to be called before that is closed."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        notes, self._notes = self._notes, []
        if isinstance(self._store, Path):
            return
        for note in notes:
            # Without it the store says less than the trace, and nothing untrue.
            with suppress(StoreError):
                self._store.note(note)

    def close(self) -> None:
        """Wait until everything is stored, and let go of the file."""
        self.flush()
        if isinstance(self._store, CallStore):
            self._store.close()
