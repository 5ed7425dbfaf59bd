"""Row statistics for losses. Each value depends only on the tokens in the same row."""

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
    def from_row_ids(cls, row_ids: Tensor) -> Rows:
        return cls(*torch.unique_consecutive(row_ids, return_inverse=True, return_counts=True))

    def sum(self, values: Tensor) -> Tensor:
        """(n_sampled,) the sum over the token's row, in an order of adding that is the same every time."""
        return torch.segment_reduce(values, "sum", lengths=self.lengths)[self.of_token] if len(values) else values

    def mean(self, values: Tensor) -> Tensor:
        """(n_sampled,) the mean over the token's row, in an order of adding that is the same every time."""
        return self.sum(values) / self.lengths[self.of_token]

    def discounted(self, values: Tensor, discount: float) -> Tensor:
        """(n_sampled,) the token's value plus `discount` times this sum at the row's next token."""
        place = torch.arange(len(values), device=values.device)
        to_end = self.lengths.cumsum(0)[self.of_token] - place
        sums, reach = values, 1
        # Each pass doubles how many tokens a sum covers.
        while reach < int(self.lengths.max(dim=0).values if len(values) else 0):
            later = torch.cat((sums[reach:], sums.new_zeros(reach)))
            sums = sums + discount**reach * later.masked_fill(to_end <= reach, 0.0)
            reach *= 2
        return sums

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
