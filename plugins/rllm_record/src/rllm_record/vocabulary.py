"""Keep track of the tokens that have occurred in a run, so that the text of each token is recorded once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.renderer import Renderer
from rllm_core.data.types import Episode


class SeenTokens:
    """The set of tokens that have occurred so far."""

    def __init__(self, known: Iterable[int] = ()) -> None:
        """Start with `known`, the ids of tokens that are already recorded."""
        self._seen = np.zeros(0, np.bool_)
        self._mark(np.array(sorted(known), np.int32))

    def new_texts(self, episodes: Iterable[Episode], renderer: Renderer) -> dict[int, str]:
        """Return token id -> text for the tokens of `episodes` that have not occurred before."""
        before = self._seen.copy()
        for episode in episodes:
            for trajectory in episode.trajectories:
                self._mark(trajectory.tokens.ids)
        new = self._seen.copy()
        new[: len(before)] &= ~before
        ids = np.flatnonzero(new).astype(np.int32)
        return dict(zip(ids.tolist(), renderer.token_texts(ids), strict=True)) if len(ids) else {}

    def _mark(self, ids: NDArray[np.int32]) -> None:
        beyond = int(ids.max(initial=-1)) + 1 - len(self._seen)
        if beyond > 0:
            self._seen = np.append(self._seen, np.zeros(beyond, np.bool_))
        self._seen[ids] = True
