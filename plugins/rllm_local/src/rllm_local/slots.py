"""Which conversation's keys and values are in which slot, and which slot has the longest beginning of a prompt."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(eq=False)
class Session:
    """A conversation and the slot that holds its keys and values."""

    slot: int
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """(n,) the tokens whose keys and values are in the slot."""
    busy: bool = False
    """Whether a request of this conversation is being served; only idle sessions may be evicted."""
    ended: bool = False
    """Whether to forget the conversation as soon as its request is over."""
    keys: list[int] = field(default_factory=list)
    """Blocks of `tokens` by which other conversations find them (`PrefixIndex`)."""

    def reusable(self, prompt: NDArray[np.int32]) -> int:
        """How many leading tokens of `prompt` need not be computed again; one token is always left to compute."""
        limit = min(len(self.tokens), len(prompt) - 1)
        if limit <= 0:
            return 0
        differs = self.tokens[:limit] != prompt[:limit]
        return int(differs.argmax()) if differs.any() else limit


BLOCK = 16
"""Tokens per block. Shorter beginnings are computed again: a copy would not be faster."""


def block_keys(tokens: NDArray[np.int32], known: Sequence[int] = ()) -> list[int]:
    """Keys of the whole blocks of `tokens`; `known` are those of its first blocks."""
    keys = list(known)
    for start in range(len(keys) * BLOCK, len(tokens) - BLOCK + 1, BLOCK):
        keys.append(hash((keys[-1] if keys else 0, tokens[start : start + BLOCK].tobytes())))
    return keys


def leading(keys: Sequence[int], among: Collection[int]) -> int:
    """How many of the first keys are among those given, without a gap."""
    count = 0
    while count < len(keys) and keys[count] in among:
        count += 1
    return count


class PrefixIndex:
    """Sessions by the blocks that are in their slots."""

    def __init__(self) -> None:
        self._holders: dict[int, dict[Session, None]] = {}

    def file(self, session: Session) -> None:
        """Note the whole blocks of `session.tokens`; call it when they are in the slot."""
        filed = len(session.keys)
        if len(session.tokens) < (filed + 1) * BLOCK:
            return
        session.keys = block_keys(session.tokens, session.keys)
        for key in session.keys[filed:]:
            self._holders.setdefault(key, {})[session] = None

    def forget(self, session: Session, keep: int = 0) -> None:
        """Take out a session's blocks beyond its first `keep` tokens."""
        blocks = keep // BLOCK
        for key in session.keys[blocks:]:
            holders = self._holders[key]
            del holders[session]
            if not holders:
                del self._holders[key]
        session.keys = session.keys[:blocks]

    def longest(self, prompt: NDArray[np.int32], keys: Sequence[int]) -> tuple[Session | None, int]:
        """The session with the longest beginning of a prompt in its slot, and how many of its tokens can be reused."""
        count = leading(keys, self._holders)
        if count == 0:
            return None, 0
        session = next(reversed(self._holders[keys[count - 1]]))
        return session, session.reusable(prompt)


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
