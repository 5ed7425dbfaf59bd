"""A session as it is read back: its calls, and the prompts they make up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_gateway.calls.errors import DamagedError
from rllm_gateway.calls.rows import CallRow, EndRow, RewardRow, SessionRow


@dataclass(frozen=True, kw_only=True)
class SessionSummary:
    """A session without its calls."""

    session: SessionRow
    calls: int
    """How many calls are stored."""
    end: EndRow | None
    """None: it has not ended."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredSession:
    """A session with everything that belongs to it, as it was at one instant."""

    session: SessionRow
    calls: tuple[CallRow, ...]
    """In the order in which they were stored; a parent stands before its children."""
    rewards: tuple[RewardRow, ...]
    """In the order in which they were given."""
    end: EndRow | None
    """None: it had not ended."""

    def prompt_ids(self, call: str) -> NDArray[np.int32]:
        """(n,) token ids of the whole prompt of a call, put together from its ancestors.

        Raises:
            KeyError: the session has no such call.
            DamagedError: an ancestor is not there.
        """
        ids = np.empty(0, np.int32)
        for row in self._lineage(call):
            ids = np.concatenate([ids[: row.kept_tokens], row.call.new_ids, row.call.response_ids])
        return ids[: len(ids) - len(self._by_id[call].call.response_ids)]

    def messages(self, call: str) -> list[Any]:
        """Messages of the whole prompt of a call, put together from its ancestors. A reply that is None is left out.

        Raises:
            KeyError: the session has no such call.
            DamagedError: an ancestor is not there.
        """
        lineage, messages = self._lineage(call), list[Any]()
        for row in lineage:
            messages = messages[: row.kept_messages] + list(row.messages)
            if row is not lineage[-1] and row.reply is not None:
                messages.append(row.reply)
        return messages

    @cached_property
    def _by_id(self) -> dict[str, CallRow]:
        return {row.id: row for row in self.calls}

    def _lineage(self, call: str) -> list[CallRow]:
        """From the first ancestor to the call itself."""
        return list(self._upwards(self._by_id[call]))[::-1]

    def _upwards(self, row: CallRow) -> Iterator[CallRow]:
        yield row
        while row.parent is not None:
            parent = self._by_id.get(row.parent)
            if parent is None:
                raise DamagedError(
                    f"session {self.session.id!r}: call {row.parent!r}, which {row.id!r} continues, is lost.",
                    "Restore the store from a copy.",
                )
            row = parent
            yield row
