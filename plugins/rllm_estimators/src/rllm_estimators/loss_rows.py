"""What losses need to know of the rows that their tokens belong to. Nothing here looks from one row at another."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of packed tokens, in order."""

    ids: Tensor
    """(n_row,) their `row_ids`."""
    of_token: Tensor
    """(n_sampled,) from 0, rising: the row of each token."""
    lengths: Tensor
    """(n_row,) sampled tokens of each."""

    @classmethod
    def of(cls, row_ids: Tensor) -> Rows:
        return cls(*torch.unique_consecutive(row_ids, return_inverse=True, return_counts=True))

    def mean(self, values: Tensor) -> Tensor:
        """(n_sampled,) the mean over the token's row, in an order of adding that is the same every time."""
        if not len(values):
            return values
        sums = torch.segment_reduce(values, "sum", lengths=self.lengths)
        return (sums / self.lengths)[self.of_token]

    def best(self, scores: Tensor, how_many: Tensor) -> Tensor:
        """(n_sampled,) bool: the `how_many`, (n_row,), tokens of each row with the highest scores."""
        order = torch.argsort(scores, descending=True, stable=True)
        order = order[torch.argsort(self.of_token[order], stable=True)]
        starts = self.lengths.cumsum(0) - self.lengths
        # `order` has the rows one after the other, as `of_token` has, with the best of each first.
        place = torch.arange(len(order), device=order.device) - starts[self.of_token]
        chosen = torch.zeros_like(order, dtype=torch.bool)
        chosen[order] = place < how_many[self.of_token]
        return chosen
