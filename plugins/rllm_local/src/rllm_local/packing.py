"""Packing of rows with the same prompt into one sequence, so that a forward pass computes their prompt once.

The sequence is the prompt, followed by the rest of each row. A mask separates the rows. Each row continues at the
position after the prompt, so it is computed from the same tokens at the same positions as in a separate sequence.
Eight rollouts of a task with a long prompt then cost little more than one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.batch import TokenBatch

PAIRS = 2048
"""Number of query and key pairs that cost as much as one token in the rest of a layer. In a real model it is about six
times the width of the hidden states, so 2048 is a low estimate. In close cases rows are therefore not packed."""
WIDEST = 4096
"""Maximum number of positions in a sequence of several rows. The mask has an entry for each pair of positions."""


@dataclass(frozen=True, eq=False)
class Pack:
    """A sequence of one row, or of several rows with the same prompt."""

    rows: tuple[int, ...]
    prompt: int
    """Number of common first tokens: the tokens before the first sampled token."""
    width: int
    """Number of input positions: the prompt, and each row's other tokens except its last token."""


def packs(batch: TokenBatch, rows: NDArray[np.int64], max_tokens: int) -> Iterator[Pack]:
    """Yield packs that contain each of the `rows` once. A pack of several rows has at most `max_tokens` and `WIDEST`
    positions.

    Args:
        batch: the rows' batch.
        rows: (n_row,) row ids, each with a sampled token.
        max_tokens: maximum number of positions.
    """
    alike: dict[bytes, list[int]] = {}
    for row in rows.tolist():
        start, end = batch.row_offsets[row : row + 2]
        # No token predicts the first token of a row, so the prompt has at least one token.
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
