"""Sampling with the same bits in every pass, for runs whose passes depend on timing.

Three effects make a row's logits depend on the other rows of its pass:

- Libraries use a different order of sums if a product has few rows. In its strict mode, MKL has one order on Intel
  processors. On AMD processors it has one order from four rows, and a different one below. So passes are padded to a
  minimum number of rows.
- Attention sums over positions in blocks, and the longest row determines the number of positions that a pass reads.
- If rows have several queries, the model's last product is computed for each row. If each row has one query, it is
  computed for all rows together.
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

TIMING_WARNING = (
    "two runs like this one end with weights that differ: log-probs depend, in their last bits, on the rows that share "
    "a pass. To get the same bits, train on a CPU, with a model that is not a mixture of experts"
)
MKL_MODE = "AUTO,STRICT"
"""Value of MKL's variable MKL_CBWR: the fastest instructions of this processor, with one order of sums."""
STEP = 16
"""Positions are read in whole steps, so that no position of a row is in the remainder."""
BLOCK = 512
"""Number of positions that torch's attention reads at a time on a CPU."""
PARTS = (192, 384, BLOCK)
"""Ends of the parts that MKL sums in a block: 192 positions on AMD processors, and 384 on Intel processors."""
ROWS = (1, 4, 8, 16)
"""Minimum numbers of rows to try. They divide the number of queries that torch's attention reads at a time."""


def is_batch_invariant(run: RunContext) -> bool:
    """Return True if the run's log-probs must not depend on the rows that share a pass."""
    return run.versions_served > 1 or bool(run.backend_config.local.batch_invariant)


def fix_order_of_sums() -> None:
    """Make MKL use one order of sums. MKL reads the variable at the process's first product. A user's value is kept."""
    os.environ.setdefault("MKL_CBWR", MKL_MODE)


def fold_last_product(model: Any) -> None:
    """Make the model compute its last product for all rows together. Copies of the model also do this."""
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
    """Measure the smallest number of rows from which a row has the same bits in every pass.

    Returns:
        The number of rows. None if there is no such number, so that log-probs depend on the rows that share a pass.
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
    """Return True if attention over each possible number of positions gives the same bits as over a whole block."""
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
    # The last position of several is a view with gaps, for which torch computes one product per row.
    return tuple(each.contiguous() for each in inputs)
