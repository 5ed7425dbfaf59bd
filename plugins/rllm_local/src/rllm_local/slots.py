"""Assigns cache slots to conversations, and finds the slot with the longest cached prefix of a prompt."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(eq=False)
class Session:
    """A conversation and the slot with its keys and values."""

    slot: int
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """The tokens whose keys and values are in the slot, (n,)."""
    busy: bool = False
    """True while a request of this conversation runs. Only idle sessions may be evicted."""
    ended: bool = False
    """True if the conversation must be removed when its request ends."""
    keys: list[int] = field(default_factory=list)
    """Keys of the blocks of `tokens`, by which other conversations find them (`PrefixIndex`)."""

    def reusable(self, prompt: NDArray[np.int32]) -> int:
        """Return the number of cached leading tokens of `prompt`. At least one token always remains to be computed."""
        limit = min(len(self.tokens), len(prompt) - 1)
        if limit <= 0:
            return 0
        differs = self.tokens[:limit] != prompt[:limit]
        return int(differs.argmax()) if differs.any() else limit


BLOCK = 16
"""Tokens per block. Shorter prefixes are computed again, because a copy would not be faster."""


def block_keys(tokens: NDArray[np.int32], known: Sequence[int] = ()) -> list[int]:
    """Return the keys of the whole blocks of `tokens`. `known` are the keys of its first blocks."""
    keys = list(known)
    for start in range(len(keys) * BLOCK, len(tokens) - BLOCK + 1, BLOCK):
        keys.append(hash((keys[-1] if keys else 0, tokens[start : start + BLOCK].tobytes())))
    return keys


def leading(keys: Sequence[int], among: Collection[int]) -> int:
    """Return the number of first keys that are in `among` without a gap."""
    count = 0
    while count < len(keys) and keys[count] in among:
        count += 1
    return count


class PrefixIndex:
    """An index of sessions by the blocks in their slots."""

    def __init__(self) -> None:
        self._holders: dict[int, dict[Session, None]] = {}

    def file(self, session: Session) -> None:
        """Add the whole blocks of `session.tokens`. Call this when they are in the slot."""
        filed = len(session.keys)
        if len(session.tokens) < (filed + 1) * BLOCK:
            return
        session.keys = block_keys(session.tokens, session.keys)
        for key in session.keys[filed:]:
            self._holders.setdefault(key, {})[session] = None

    def forget(self, session: Session, keep: int = 0) -> None:
        """Remove a session's blocks after its first `keep` tokens."""
        blocks = keep // BLOCK
        for key in session.keys[blocks:]:
            holders = self._holders[key]
            del holders[session]
            if not holders:
                del self._holders[key]
        session.keys = session.keys[:blocks]

    def longest(self, prompt: NDArray[np.int32], keys: Sequence[int]) -> tuple[Session | None, int]:
        """Return the session with the longest prefix of a prompt in its slot, and the number of reusable tokens."""
        count = leading(keys, self._holders)
        if count == 0:
            return None, 0
        session = next(reversed(self._holders[keys[count - 1]]))
        return session, session.reusable(prompt)


class SlotTable:
    """Assigns slots, lowest first. If none is free, it evicts the conversation that has been idle for the longest time.

    A slot keeps its tokens until it is assigned again. Until then, `prefixes` finds them for prompts with this prefix.
    """

    def __init__(self, slots: int) -> None:
        self.prefixes = PrefixIndex()
        self._free = list(range(slots))
        # Insertion order is order of last use.
        self._sessions: dict[str, Session] = {}
        self._ended: dict[int, Session] = {}
        """Sessions of ended conversations whose tokens are still in free slots, by slot."""

    def get(self, name: str) -> Session | None:
        """Return the conversation's session. None if it has none."""
        return self._sessions.get(name)

    def acquire(self, name: str) -> Session | None:
        """Return the conversation's session, and create it if needed. None if every slot serves a request."""
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
        """Remove a conversation. If its request is running, remove it when the request ends."""
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
        """Mark the conversation's request as ended."""
        session = self._sessions[name]
        session.busy = False
        if session.ended:
            self.release(name)

    def clear(self) -> None:
        """Remove all cached tokens, for example after a change of weights."""
        for session in (*self._sessions.values(), *self._ended.values()):
            session.tokens, session.keys = session.tokens[:0], []
        self._ended.clear()
        self.prefixes = PrefixIndex()

    def resize(self, slots: int) -> list[str]:
        """Change the number of slots, and return the conversations that lost their slots."""
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
