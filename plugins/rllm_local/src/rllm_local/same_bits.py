"""Sampling whose results are the same bits, whoever shares a pass: for runs whose passes depend on timing.

Three things make a row's logits depend on the rows beside it. MKL sums in another order where there are few rows. Sums
over the positions of a slot are cut into blocks by how many positions the longest row reads. The last product of the
model is one per row where a row has several queries, and one for all where each has one.

Measured on float32 weights, one core: with all three fixed, logits are the same bits for every number of rows and every
length; products with 16 rows or more take as long as before, a product with one row up to twice as long.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

TIMING_MATTERS = (
    "two runs like this one end with weights that differ: log-probs depend, in their last bits, on what shares a pass. "
    "They are the same on a CPU in float32, with torch's MKL, in a process in which torch has not computed before"
)
MKL_MODE = "AUTO,STRICT"
"""Of MKL's variable MKL_CBWR: the fastest instructions of this processor, and sums in one order."""
STEP = 16
"""Positions are read by whole steps, so that none of a row falls among those that are left over."""
BLOCK = 512
"""Torch's attention takes so many positions at a time on a CPU."""
WHOLE_BLOCK = 384
"""MKL sums so many products at a time: a block of more positions is read whole."""


def fix_order_of_sums() -> None:
    """Have MKL sum in one order. It looks once, at the first product of this process; a user's own setting stays."""
    os.environ.setdefault("MKL_CBWR", MKL_MODE)


def sums_in_one_order(model: Any) -> bool:
    """Whether a row's product with weights of the model is the same bits alone and among others."""
    weights = model.get_input_embeddings().weight.detach()[:4096]
    rows = torch.randn(64, weights.shape[-1], generator=torch.Generator().manual_seed(0)).to(weights)
    together = rows @ weights.T
    return all(torch.equal(rows[:count] @ weights.T, together[:count]) for count in (1, 2, 5, 16))


def fold_last_product(model: Any) -> None:
    """Have the model's last product be one for all rows. Copies of the model do the same."""
    output = model.get_output_embeddings()
    if output is not None:
        output.register_forward_pre_hook(_contiguous)


def positions_to_read(length: int) -> int:
    """How many positions of a slot to read where `length` are needed."""
    stepped = -(-length // STEP) * STEP
    return stepped if stepped % BLOCK <= WHOLE_BLOCK else -(-length // BLOCK) * BLOCK


def _contiguous(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    # The last position of several is a view with gaps, of which torch makes a product per row.
    return tuple(each.contiguous() for each in inputs)
