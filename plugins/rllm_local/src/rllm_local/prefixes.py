"""Which slots hold which tokens: finds the slot with the longest beginning of a prompt, block by block.

A block's key is the hash of its tokens and of the key before it, so that equal keys mean equal beginnings. Looking a
prompt up takes time in proportion to its length, whatever is held. Keys only point to slots: the tokens decide.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from rllm_local.sessions import Session

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
