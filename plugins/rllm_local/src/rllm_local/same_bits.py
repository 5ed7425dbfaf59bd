"""Sampling whose results have the same bits in every pass: for runs whose passes depend on timing.

Three things make a row's logits depend on the other rows of its pass:

- Libraries sum in another order if a product has few rows. MKL has one order on Intel processors in its strict mode. On
  AMD processors it has one order from four rows on, and another order below. So passes are padded to a number of rows.
- Attention sums over positions in blocks, and the longest row decides how many positions a pass reads.
- The model's last product is one per row if rows have several queries, and one for all rows if each row has one query.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.engine import SamplingParams
from rllm_local.forward import Row, sample_next
from rllm_local.kv_cache import PassShape, SlotCache

TIMING_MATTERS = (
    "two runs like this one end with weights that differ: log-probs depend, in their last bits, on the rows that share "
    "a pass. To get the same bits, train on a CPU, with a model that is not a mixture of experts"
)
MKL_MODE = "AUTO,STRICT"
"""Value of MKL's variable MKL_CBWR: the fastest instructions of this processor, and sums in one order."""
STEP = 16
"""Positions are read by whole steps, so that no position of a row is among the remainder."""
BLOCK = 512
"""Torch's attention reads so many positions at a time on a CPU."""
PARTS = (192, 384, BLOCK)
"""Ends of the parts that MKL sums in a block: of 192 positions on AMD processors, and of 384 on Intel processors."""
ROWS = (1, 4, 8, 16)
"""Minimum numbers of rows to try. They divide the numbers of queries that torch's attention reads at a time."""


def is_batch_invariant(run: RunContext) -> bool:
    """True if the log-probs of the run must not depend on the rows that share a pass."""
    return run.versions_served > 1 or bool(run.backend_config.local.batch_invariant)


def fix_order_of_sums() -> None:
    """Have MKL sum in one order. It looks once, at the first product of this process; a user's own setting stays."""
    os.environ.setdefault("MKL_CBWR", MKL_MODE)


def fold_last_product(model: Any) -> None:
    """Have the model's last product be one for all rows. Copies of the model do the same."""
    output = model.get_output_embeddings()
    if output is not None:
        output.register_forward_pre_hook(_contiguous)


def positions_to_read(length: int) -> int:
    """Return how many positions of a slot to read if `length` are needed."""
    stepped = -(-length // STEP) * STEP
    rest = stepped % BLOCK
    return stepped if rest <= PARTS[0] else stepped - rest + next(part for part in PARTS if rest <= part)


@torch.inference_mode()
def find_fewest_rows(model: Any) -> int | None:
    """Return the smallest number of rows from which a row has the same bits in every pass. It is measured.

    Returns:
        None if no such number was found: log-probs depend on the rows that share a pass.
    """
    if model.device.type != "cpu":
        return None
    for fewest in ROWS:
        if _products_agree(model, fewest) and _attention_agrees(model, fewest) and _passes_agree(model, fewest):
            return fewest
    return None


def _products_agree(model: Any, fewest: int) -> bool:
    weights = model.get_input_embeddings().weight.detach()[:4096]
    rows = _random(96, weights.shape[-1]).to(weights)
    together = rows @ weights.T
    counts = {fewest, fewest + 1, fewest + 2, 2 * fewest, 5 * fewest, 33}
    return all(torch.equal(rows[:count] @ weights.T, together[:count]) for count in counts if count >= fewest)


def _attention_agrees(model: Any, fewest: int) -> bool:
    """Compare the numbers of positions that passes read with a whole block."""
    query, key, value = (_random(1, 1, count, 64).to(model.dtype) for count in (32, BLOCK, BLOCK))
    attention = torch.nn.functional.scaled_dot_product_attention
    for length in sorted({positions_to_read(length) for length in range(1, BLOCK)}):
        seen = (torch.arange(BLOCK) < length).expand(1, 1, 32, BLOCK)
        whole = attention(query, key, value, attn_mask=seen)
        for count in (fewest, 32):
            part = attention(
                query[:, :, :count], key[:, :, :length], value[:, :, :length], attn_mask=seen[:, :, :count, :length]
            )
            if not torch.equal(part, whole[:, :, :count]):
                return False
    return True


def _passes_agree(model: Any, fewest: int) -> bool:
    """Return True if a row draws the same tokens in a shared pass and in a separate pass of a few tokens."""
    rows, size = 3, 9
    limit = min(model.config.get_text_config().vocab_size, 64)
    tokens = np.random.default_rng(0).integers(0, limit, (rows, size)).astype(np.int32)
    sampling = SamplingParams(max_tokens=1, seed=0)

    def draws(cuts: tuple[int, ...], chosen: range) -> tuple[int, float]:
        shape = PassShape(fewest, positions_to_read)
        cache = SlotCache(model.config.get_text_config().num_hidden_layers, rows, positions_to_read(size), shape)
        drawn, cached = None, 0
        for end in cuts:
            drawn = sample_next(
                model, cache, [Row(row, cached, tokens[row, cached:end], sampling, 0) for row in chosen]
            )
            cached = end
        assert drawn is not None
        return int(drawn.tokens[0]), float(drawn.logprobs[0])

    expected = draws((size,), range(rows))
    return all(draws(cuts, range(count)) == expected for cuts in ((size,), (5, size - 1, size)) for count in (1, rows))


def _random(*sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(0))


def _contiguous(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    # The last position of several is a view with gaps, of which torch makes a product per row.
    return tuple(each.contiguous() for each in inputs)
