"""What is cached of one conversation."""

from __future__ import annotations

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
