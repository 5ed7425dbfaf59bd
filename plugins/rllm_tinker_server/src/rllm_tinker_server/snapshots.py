"""Weights for sampling in memory, with a fair share for each owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rllm_tinker_server.messages import RequestRefused


@dataclass(frozen=True, slots=True)
class _Held:
    owner: str
    weights: Any
    on_disk: bool


class Snapshots:
    """Sampler weights in memory. `weights` are opaque here. `forget` receives each set of weights that is dropped."""

    def __init__(self, max_held: int, forget: Callable[[Any], None]) -> None:
        self._max_held = max_held
        self._forget = forget
        # Least recently used first.
        self._held: dict[str, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: str) -> Any | None:
        """The weights, or None when they have left."""
        held = self._held.pop(key, None)
        if held is None:
            return None
        self._held[key] = held
        return held.weights

    def put(self, key: str, weights: Any, *, owner: str, on_disk: bool) -> None:
        """Store weights, and replace weights with the same key.

        If the memory is full, the owner with the most sets loses one, so no owner loses weights to an owner with more.
        Weights that are also `on_disk` are dropped first, because they can be read again. A sampler is lost if its
        other weights are dropped.

        Raises:
            RequestRefused: the memory is full, and no other owner has more than one set.
        """
        self.drop(key)
        while len(self._held) >= self._max_held:
            self._drop_one(owner)
        self._held[key] = _Held(owner, weights, on_disk)

    def drop(self, key: str) -> None:
        """Drop weights if they are in memory."""
        held = self._held.pop(key, None)
        if held is not None:
            self._forget(held.weights)

    def _drop_one(self, newcomer: str) -> None:
        counts = Counter(held.owner for held in self._held.values())
        counts[newcomer] += 1
        loser = max(counts, key=lambda owner: (counts[owner], owner == newcomer))
        keys = [key for key, held in self._held.items() if held.owner == loser]
        if not keys:
            raise RequestRefused(
                f"This server keeps {self._max_held} sets of weights for sampling, and each belongs to a different "
                "key. Try again later, or start the server with a larger --max-snapshots."
            )
        self.drop(next((key for key in keys if self._held[key].on_disk), keys[0]))
