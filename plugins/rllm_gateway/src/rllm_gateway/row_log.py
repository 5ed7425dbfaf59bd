"""Write the rows of sessions to a store. Deliveries wait for the next commit of a different row."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from rllm_gateway.calls import CallStore, DeliveryRow, Row, StoreError

SECONDS_BETWEEN_NOTES = 1.0
"""Maximum time that a delivery waits if no other row is stored. A separate commit per delivery would delay the next
call."""


class RowLog:
    """Writer of a gateway's rows. All methods must be called on one event loop."""

    def __init__(self, store: CallStore | Path) -> None:
        """Use `store`. If it is a path, it is opened with the first row. Before that, a run may delete an old store."""
        self._store = store
        self._notes = list[DeliveryRow]()
        self._flushing: asyncio.TimerHandle | None = None

    async def add(self, *rows: Row) -> None:
        """Return once all rows are on disk.

        Raises:
            StoreError: a row cannot be stored.
        """
        self.flush()
        store = self._store = CallStore.open(self._store) if isinstance(self._store, Path) else self._store
        if len(rows) == 1:
            await store.add(rows[0])
        else:
            await asyncio.gather(*(store.add(row) for row in rows))

    def note(self, row: DeliveryRow) -> None:
        """Store a row soon, without waiting for it."""
        self._notes.append(row)
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(SECONDS_BETWEEN_NOTES, self.flush)

    def flush(self) -> None:
        """Pass waiting deliveries to the store. Call it before the store is closed."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        notes, self._notes = self._notes, []
        if isinstance(self._store, Path):
            return
        for note in notes:
            # If it cannot be stored, the store lacks a delivery that the trace has, but contains nothing wrong.
            with suppress(StoreError):
                self._store.note(note)

    def close(self) -> None:
        """Wait until everything is stored, and close the file."""
        self.flush()
        if isinstance(self._store, CallStore):
            self._store.close()
