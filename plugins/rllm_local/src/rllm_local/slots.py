"""Which conversation's keys and values are in which slot of the cache."""

from __future__ import annotations

import heapq

from rllm_local.prefixes import PrefixIndex
from rllm_local.sessions import Session


class SlotTable:
    """Hands out slots, lowest first; evicts the conversation idle for longest when none is free.

    A slot keeps its tokens until it is handed out again: prompts that begin with them find them in `prefixes`.
    """

    def __init__(self, slots: int) -> None:
        self.prefixes = PrefixIndex()
        self._free = list(range(slots))
        # Insertion order is order of last use.
        self._sessions: dict[str, Session] = {}
        self._ended: dict[int, Session] = {}
        """By slot, what ended conversations left in free slots."""

    def get(self, name: str) -> Session | None:
        """The conversation's session, where it has one."""
        return self._sessions.get(name)

    def acquire(self, name: str) -> Session | None:
        """The conversation's session, made if need be; None when every slot serves a request."""
        session = self._sessions.pop(name, None)
        if session is None:
            slot = heapq.heappop(self._free) if self._free else self._evict()
            if slot is None:
                return None
            if slot in self._ended:
                self.prefixes.forget(self._ended.pop(slot))
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
            self._ended[session.slot] = session
            heapq.heappush(self._free, session.slot)

    def leave(self, name: str) -> None:
        """The conversation's request is over."""
        session = self._sessions[name]
        session.busy = False
        if session.ended:
            self.release(name)

    def clear(self) -> None:
        """Forget all tokens that are cached, as after a change of weights."""
        for session in (*self._sessions.values(), *self._ended.values()):
            session.tokens, session.keys = session.tokens[:0], []
        self._ended.clear()
        self.prefixes = PrefixIndex()

    def resize(self, slots: int) -> list[str]:
        """Change the number of slots; returns the conversations that lost theirs."""
        lost = [name for name, session in self._sessions.items() if session.slot >= slots]
        for name in lost:
            self.prefixes.forget(self._sessions.pop(name))
        for slot in [slot for slot in self._ended if slot >= slots]:
            self.prefixes.forget(self._ended.pop(slot))
        held = {session.slot for session in self._sessions.values()}
        self._free = [slot for slot in range(slots) if slot not in held]
        return lost

    def _evict(self) -> int | None:
        for name, session in self._sessions.items():
            if not session.busy:
                del self._sessions[name]
                self.prefixes.forget(session)
                return session.slot
        return None
