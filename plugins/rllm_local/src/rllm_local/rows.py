"""Conversion of a TokenBatch to torch micro-batches: sequences of similar length, padded on the right.

Rows with the same prompt are packed into one sequence, so that a forward pass computes their prompt once. The sequence
is the prompt, followed by the rest of each row. A mask separates the rows. Each row continues at the position after the
prompt, so it is computed from the same tokens at the same positions as in a separate sequence. Eight rollouts of a task
with a long prompt then cost little more than one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.minibatches import sampled_per_row
from rllm_core.data.batch import TokenBatch
from rllm_local.exact_attention import FEWEST_ROWS, Branches, whole_blocks

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


def pack_rows(batch: TokenBatch, rows: NDArray[np.int64], max_tokens: int) -> Iterator[Pack]:
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
        yield from _pack_with_prompt(members, len(tokens) // size, batch.row_lengths[members].tolist(), max_tokens)


def _pack_with_prompt(rows: Sequence[int], prompt: int, lengths: Sequence[int], max_tokens: int) -> Iterator[Pack]:
    members: list[int] = []
    width, widest = prompt, min(max_tokens, WIDEST) // FEWEST_ROWS * FEWEST_ROWS
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


ENOUGH = 1024
"""Padded tokens that keep a device busy. Smaller micro-batches are not cut for their padding."""
MOST_PADDED = 1.125
"""Maximum number of padded tokens per real token."""


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Rows of a batch. Rows with the same prompt share a sequence. ``n_sampled`` is the number of sampled tokens."""

    input_ids: Tensor
    """Each row's tokens except the last, (n_sequence, width) int64."""
    position_ids: Tensor | None
    """Positions, (n_sequence, width) int64. None if positions are columns."""
    attention_mask: Tensor | None
    """True for each position that a position sees, (n_sequence, 1, width, width) bool. None if each position sees all
    earlier ones. Padding is on the right and needs no mask."""
    branches: Sequence[Branches]
    """Parts of the conversations if the sequences are packed: the parts at their start, and the parts after a shared
    prompt."""
    columns: Tensor
    """Positions in `input_ids` that predict a sampled token in at least one sequence, (n_column,)."""
    places: tuple[Tensor, Tensor]
    """Indices of the sequence and of the entry in `columns` that predict each sampled token, (n_sampled,) int64 each.
    Rows with the same prompt have the same place for their first sampled token."""
    targets: Tensor
    """The sampled tokens, (n_sampled,) int64."""
    source: NDArray[np.int64]
    """Index of each sampled token in the TokenBatch, (n_sampled,). Tokens of a row are consecutive."""
    row_ids: Tensor
    """Each sampled token's row, (n_sampled,) int64."""

    def at(self, chosen: Tensor) -> MicroBatch:
        """Return the same sequences with only the predicted tokens for which `chosen`, (n_sampled,) bool, is true."""
        sequence, column = self.places
        return replace(
            self,
            places=(sequence[chosen], column[chosen]),
            targets=self.targets[chosen],
            source=self.source[chosen.cpu().numpy()],
            row_ids=self.row_ids[chosen],
        )

    def column(self, values: NDArray[np.float32]) -> Tensor:
        """Return the sampled tokens' entries, (n_sampled,), in a column of the TokenBatch, (n_token,)."""
        return torch.from_numpy(values[self.source]).to(self.targets.device)


def sampled_places(batch: TokenBatch) -> NDArray[np.int64]:
    """Return the number of sampled tokens before each token of the batch, (n_token,)."""
    return np.cumsum(batch.loss_mask, dtype=np.int64) - batch.loss_mask


def micro_batches(
    batch: TokenBatch, rows: NDArray[np.int64], max_tokens: int, device: torch.device
) -> Iterator[MicroBatch]:
    """Split `rows` into micro-batches of at most `max_tokens` padded tokens (at least one row), short sequences first.

    A micro-batch ends earlier if a longer sequence would add too much padding to the others. Rows without a sampled
    token are skipped, because they would add exactly 0 to the gradient.
    """
    rows = rows[sampled_per_row(batch)[rows] > 0]
    order = sorted(pack_rows(batch, rows, max_tokens), key=lambda pack: pack.width)
    start = 0
    while start < len(order):
        end = start + 1
        real = order[start].width
        while end < len(order):
            width = order[end].width
            padded, real = (end + 1 - start) * _pad_width(width), real + width
            if padded > max_tokens or (padded > ENOUGH and padded > MOST_PADDED * real):
                break
            end += 1
        yield _pad(batch, order[start:end], device)
        start = end


def _pad_width(width: int) -> int:
    return width + -width % FEWEST_ROWS


def _pad(batch: TokenBatch, sequences: Sequence[Pack], device: torch.device) -> MicroBatch:
    shape = len(sequences), _pad_width(max(pack.width for pack in sequences))
    ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    owners = np.full(shape, -1, np.int64)
    """Each position's row. -1 in prompts, which all rows see."""
    predicted: list[tuple[NDArray[np.int64], ...]] = []
    for number, pack in enumerate(sequences):
        at = pack.prompt
        first = batch.row_offsets[pack.rows[0]]
        ids[number, :at], positions[number, :at] = batch.tokens[first : first + at], np.arange(at)
        for row in pack.rows:
            start, end = batch.row_offsets[row : row + 2]
            first, last = start + pack.prompt, end - 1
            following = slice(at, at + last - first)
            ids[number, following] = batch.tokens[first:last]
            positions[number, following] = np.arange(pack.prompt, last - start)
            owners[number, following] = row
            sampled = np.flatnonzero(batch.loss_mask[first:end])
            column = np.where(sampled == 0, pack.prompt - 1, at + sampled - 1)
            predicted.append((np.full(len(sampled), number), column, first + sampled, np.full(len(sampled), row)))
            at = following.stop
    sequence, column, source, row_ids = (np.concatenate(each) for each in zip(*predicted, strict=True))
    columns, places = np.unique(column, return_inverse=True)
    packed = any(len(pack.rows) > 1 for pack in sequences)
    return MicroBatch(
        input_ids=torch.from_numpy(ids).to(device),
        position_ids=torch.from_numpy(positions).to(device) if packed else None,
        attention_mask=_mask(torch.from_numpy(owners).to(device)) if packed else None,
        branches=_branches(batch, sequences, shape[1]) if packed else (),
        columns=torch.from_numpy(columns).to(device),
        places=(torch.from_numpy(sequence).to(device), torch.from_numpy(places).to(device)),
        targets=torch.from_numpy(batch.tokens[source].astype(np.int64)).to(device),
        source=source,
        row_ids=torch.from_numpy(row_ids).to(device),
    )


def _branches(batch: TokenBatch, sequences: Sequence[Pack], width: int) -> list[Branches]:
    whole: list[Part] = []
    after_prompt: list[Part] = []
    for number, pack in enumerate(sequences):
        places = number * width + np.arange(pack.width)
        if len(pack.rows) == 1:
            whole.append((places, 0))
            continue
        prompt, at = places[: pack.prompt], pack.prompt
        whole.append((prompt, 0))
        for row in pack.rows:
            end = at + int(batch.row_lengths[row]) - 1 - pack.prompt
            if end > at:
                after_prompt.append((np.concatenate((prompt, places[at:end])), pack.prompt))
            at = end
    return pad_branches(whole, after_prompt)


Part = tuple[NDArray[np.int64], int]
"""Places of the tokens of a conversation up to the end of a part, and the number of tokens before the part."""


def pad_branches(*groups: Sequence[Part]) -> list[Branches]:
    """Return the parts of each group, padded to the same length. Empty groups have no result."""
    return [_pad_branches(parts) for parts in groups if parts]


def _pad_branches(parts: Sequence[Part]) -> Branches:
    n_query = max(len(keys) - start for keys, start in parts)
    shape = len(parts), _pad_width(n_query)
    queries, positions = np.full(shape, -1), np.zeros(shape, np.int64)
    padded_keys = np.zeros((len(parts), whole_blocks(max(len(keys) for keys, _ in parts))), np.int64)
    for number, (keys, start) in enumerate(parts):
        padded_keys[number, : len(keys)] = keys
        queries[number, : len(keys) - start] = keys[start:]
        positions[number, : len(keys) - start] = np.arange(start, len(keys))
    return Branches(queries, positions, padded_keys)


def _mask(owners: Tensor) -> Tensor:
    """Return the mask: a position sees its prompt and its own row up to itself. Padding sees the prompt."""
    keys, queries = owners[:, None, :], owners[:, :, None]
    return ((keys == queries) | (keys < 0)).tril()[:, None]
