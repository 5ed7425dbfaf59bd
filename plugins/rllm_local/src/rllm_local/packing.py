"""Rows with the same prompt, in one sequence: a forward pass computes their prompt once.

The sequence is the prompt and then what follows it in each row. A mask keeps the rows apart, and each row goes on at
the position behind the prompt, so that a row is computed from the same tokens at the same positions as by itself.
The eight attempts at a task with a long prompt cost little more than one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.batch import TokenBatch

PAIRS = 2048
"""Pairs of a query and a key that cost as much as a token costs elsewhere in a layer: about six times the width of the
model's hidden states, so fewer than in any model that is trained for use. Rows are kept apart where it is close."""
WIDEST = 4096
"""Most positions of several rows in one sequence. Their mask has an entry for each pair of positions."""


@dataclass(frozen=True, eq=False)
class Pack:
    """A sequence of one row, or of several that begin with the same prompt."""

    rows: tuple[int, ...]
    prompt: int
    """Tokens that come first in each of them; those before the first sampled token."""
    width: int
    """Input positions: the prompt, and all but the last token of what follows it in each row."""


def packs(batch: TokenBatch, rows: NDArray[np.int64], max_tokens: int) -> Iterator[Pack]:
    """All `rows`, each in one pack of at most `max_tokens` and `WIDEST` positions, or by itself.

    Args:
        batch: where they are from.
        rows: (n_row,) each with a sampled token.
        max_tokens: the limit.
    """
    alike: dict[bytes, list[int]] = {}
    for row in rows.tolist():
        start, end = batch.row_offsets[row : row + 2]
        # A token at the very start is predicted by nothing, so what follows it begins one later.
        prompt = max(1, int(batch.loss_mask[start:end].argmax()))
        alike.setdefault(batch.tokens[start : start + prompt].tobytes(), []).append(row)
    size = batch.tokens.itemsize
    for tokens, members in alike.items():
        yield from _packed(members, len(tokens) // size, batch.row_lengths[members].tolist(), max_tokens)


def _packed(rows: Sequence[int], prompt: int, lengths: Sequence[int], max_tokens: int) -> Iterator[Pack]:
    members: list[int] = []
    width, widest = prompt, min(max_tokens, WIDEST)
    for row, length in zip(rows, lengths, strict=True):
        longer = width + length - 1 - prompt
        if members and (longer > widest or _cost(longer) - _cost(width) > _cost(length - 1)):
            yield Pack(tuple(members), prompt, width)
            members, longer = [], length - 1
        members.append(row)
        width = longer
    yield Pack(tuple(members), prompt, width)


def _cost(width: int) -> float:
    return width + width * width / PAIRS
