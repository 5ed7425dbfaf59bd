"""Conversion of TokenBatch rows to the service's datums, and of its results back to batch columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.batch import TokenBatch
from rllm_tinker.exchange import Datum


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a batch, each cut after its last sampled token. Rows without a sampled token are removed.

    The target at position i of a row is its token i + 1, so the batch's columns are read from the second token.
    """

    batch: TokenBatch
    rows: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    """Start and end of each row's targets in the batch's columns."""

    @classmethod
    def from_batch(cls, batch: TokenBatch, rows: Sequence[int] | NDArray[np.int64]) -> Rows:
        chosen: list[int] = []
        spans: list[tuple[int, int]] = []
        for row in map(int, rows):
            start, end = int(batch.row_offsets[row]), int(batch.row_offsets[row + 1])
            sampled = np.flatnonzero(batch.loss_mask[start + 1 : end])
            if len(sampled):
                chosen.append(row)
                spans.append((start + 1, start + 2 + int(sampled[-1])))
        return cls(batch, tuple(chosen), tuple(spans))

    def __len__(self) -> int:
        return len(self.rows)

    def datums(self, **columns: NDArray[np.float32]) -> list[Datum]:
        """Return one datum per row. These columns of the batch, (n_token,), become the loss inputs."""
        tokens = self.batch.tokens
        return [
            Datum(
                tokens=tokens[start - 1 : end - 1],
                targets=tokens[start:end],
                inputs={name: column[start:end] for name, column in columns.items()},
            )
            for start, end in self.spans
        ]

    def column(self, values: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return a column (n_token of the batch,) with the service's values for each row's targets, and 0 elsewhere."""
        column = np.zeros(len(self.batch.tokens), np.float32)
        for (start, end), of_row in zip(self.spans, values, strict=True):
            column[start:end] = of_row
        return column

    @property
    def sampled(self) -> NDArray[np.int64]:
        """Indices of the sampled tokens in the batch, (n_sampled,), row after row."""
        parts = [start + np.flatnonzero(self.batch.loss_mask[start:end]) for start, end in self.spans]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def by_role(self) -> Iterator[tuple[str, Rows]]:
        """Yield each role that has rows, with its rows."""
        for index, role in enumerate(self.batch.roles):
            chosen = [row for row in self.rows if self.batch.role[row] == index]
            if chosen:
                yield role, Rows.from_batch(self.batch, chosen)
