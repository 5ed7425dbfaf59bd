"""From rows of a TokenBatch to what the service takes, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.batch import TokenBatch
from rllm_tinker.exchange import Datum


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a batch, each up to its last sampled token; those without a sampled token are left out.

    The target at position i of a row is its token i + 1, so columns of the batch are read from the second token on.
    """

    batch: TokenBatch
    rows: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    """Of each row, where its targets begin and end in the batch's columns."""

    @classmethod
    def of(cls, batch: TokenBatch, rows: Sequence[int] | NDArray[np.int64]) -> Rows:
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
        """One datum per row, with these columns of the batch, (n_token,), as the inputs of a loss."""
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
        """(n_token of the batch,) what the service returned for the targets of each row, and 0 elsewhere."""
        column = np.zeros(len(self.batch.tokens), np.float32)
        for (start, end), of_row in zip(self.spans, values, strict=True):
            column[start:end] = of_row
        return column

    @property
    def sampled(self) -> NDArray[np.int64]:
        """(n_sampled,) where the sampled tokens are in the batch, row after row."""
        parts = [start + np.flatnonzero(self.batch.loss_mask[start:end]) for start, end in self.spans]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def by_role(self) -> Iterator[tuple[str, Rows]]:
        """The rows of each role that has any."""
        for index, role in enumerate(self.batch.roles):
            chosen = [row for row in self.rows if self.batch.role[row] == index]
            if chosen:
                yield role, Rows.of(self.batch, chosen)
