"""Which conversation's keys and values are in which slot of the cache."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(eq=False)
class Session:
    """What is cached of one conversation."""

    slot: int
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """(n,) the tokens whose keys and values are in the slot."""
    busy: bool = False
    """Whether a request of this conversation is being served; only idle sessions may be evicted."""
    ended: bool = False
    """Whether to forget the conversation as soon as its request is over."""

    def reusable(self, prompt: NDArray[np.int32]) -> int:
        """How many leading tokens of `prompt` need not be computed again; one token is always left to compute."""
        limit = min(len(self.tokens), len(prompt) - 1)
        if limit <= 0:
            return 0
        differs = self.tokens[:limit] != prompt[:limit]
        return int(differs.argmax()) if differs.any() else limit


class SlotTable:
    """Hands out slots, lowest first; evicts the conversation idle for longest when none is free."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots))
        # Insertion order is order of last use.
        self._sessions: dict[str, Session] = {}

    def acquire(self, name: str) -> Session | None:
        """The conversation's session, made if need be; None when every slot serves a request."""
        session = self._sessions.pop(name, None)
        if session is None:
            slot = heapq.heappop(self._free) if self._free else self._evict()
            if slot is None:
                return None
            session = Session(slot)
        self._sessions[name] = session
        return session

    def release(self, name: str) -> None:
        """Forget a conversation; one that is being served, when its request is over."""
        session = self._sessions.get(name)
        if session is None:
            return
        if session.busy:
            session.ended = True
        else:
            del self._sessions[name]
            heapq.heappush(self._free, session.slot)

    def leave(self, name: str) -> None:
        """The conversation's request is over."""
        session = self._sessions[name]
        session.busy = False
        if session.ended:
            self.release(name)

    def clear(self) -> None:
        """Forget what is cached of every conversation, as after a change of weights."""
        for session in self._sessions.values():
            session.tokens = session.tokens[:0]

    def resize(self, slots: int) -> list[str]:
        """Change the number of slots; returns the conversations that lost theirs."""
        lost = [name for name, session in self._sessions.items() if session.slot >= slots]
        for name in lost:
            del self._sessions[name]
        held = {session.slot for session in self._sessions.values()}
        self._free = [slot for slot in range(slots) if slot not in held]
        return lost

    def _evict(self) -> int | None:
        for name, session in self._sessions.items():
            if not session.busy:
                del self._sessions[name]
                return session.slot
        return None
