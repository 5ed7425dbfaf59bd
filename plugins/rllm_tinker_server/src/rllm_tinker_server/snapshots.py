"""Weights for sampling that are held in memory. When there are too many, the least recently used leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class _Held:
    weights: Any
    on_disk: bool


class Snapshots:
    """`weights` are opaque here; `forget` is told of each that leaves."""

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

    def put(self, key: str, weights: Any, *, on_disk: bool) -> None:
        """Hold weights, in place of any of the same key. Those that are `on_disk` too leave first: they can be read
        again, while without the others their samplers are lost.
        """
        self.drop(key)
        while len(self._held) >= self._max_held:
            readable = (key for key, held in self._held.items() if held.on_disk)
            self.drop(next(readable, next(iter(self._held))))
        self._held[key] = _Held(weights, on_disk)

    def drop(self, key: str) -> None:
        """Let go of weights, if they are held."""
        held = self._held.pop(key, None)
        if held is not None:
            self._forget(held.weights)
