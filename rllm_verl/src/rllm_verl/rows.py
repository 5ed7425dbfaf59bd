"""From a TokenBatch to what verl's workers are given, and back: ragged rows dealt to ranks, without padded tokens.

Token columns are nested tensors (jagged layout) that share their offsets. verl's engines answer in the same layout, and
what they say at a position is of the next token: the log-prob of token ``j`` of a row stands at ``j - 1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NonTensorData, TensorDict
from torch import Tensor

from rllm_core.data.batch import TokenBatch
from rllm_core.errors import BackendError

PADDING = -1
"""The row id of a row that is there for divisibility alone."""


@dataclass(frozen=True, kw_only=True)
class MicroBatching:
    """How verl's engine cuts the rows of a rank into micro-batches, as far as dealing must know it."""

    rows: int = 1
    """Each rank is given a multiple of this. The size of micro-batches where that is fixed
    (``…micro_batch_size_per_gpu``), 1 where they are cut by tokens (``use_dynamic_bsz``)."""
    max_tokens: int | None = None
    """Tokens of a micro-batch where they are cut by tokens; a longer row fits none."""


@dataclass(frozen=True, eq=False)
class DealtRows:
    """Some rows of a batch in the order in which ranks are given them: equal numbers of rows, about equal of tokens.

    A row ends at its last sampled token, as nothing is learnt of what follows; rows without any are left out. Padding
    rows are one token long. As no token before predicts the first of a row, it is never among the sampled ones, and
    a padding row has no other.
    """

    batch: TokenBatch
    rows: NDArray[np.int64]
    """(n_dealt,) row ids in the batch, `PADDING` for padding."""
    offsets: NDArray[np.int64]
    """(n_dealt + 1,) where the tokens of each row begin."""
    source: NDArray[np.int64]
    """(offsets[-1],) where in the batch each token stands."""
    sampled: NDArray[np.bool_]
    """(offsets[-1],) tokens to learn from."""

    @classmethod
    def deal(cls, batch: TokenBatch, rows: NDArray[np.int64], ranks: int, micro: MicroBatching) -> DealtRows:
        """Deal `rows`, ids in the batch, to `ranks`.

        Raises:
            BackendError: a row is longer than a micro-batch may be.
        """
        starts = batch.row_offsets[rows]
        lengths = _last_sampled(batch)[rows] + 1 - starts
        learns = lengths > 1
        rows, starts, lengths = rows[learns], starts[learns], lengths[learns]
        if micro.max_tokens is not None and len(rows) and int(lengths.max()) > micro.max_tokens:
            raise BackendError(
                "context-too-long",
                f"A row has {int(lengths.max())} tokens; verl's micro-batches hold {micro.max_tokens}.",
                "Raise actor_rollout_ref.actor.ppo_max_token_len_per_gpu, and log_prob_max_token_len_per_gpu of "
                "rollout and ref; or lower data.max_prompt_length or data.max_response_length.",
            )
        missing = -len(rows) % (ranks * micro.rows)
        rows = np.concatenate([rows, np.full(missing, PADDING, np.int64)])
        starts = np.concatenate([starts, np.zeros(missing, np.int64)])
        lengths = np.concatenate([lengths, np.ones(missing, np.int64)])
        order = _balanced_order(lengths, ranks)
        rows, starts, lengths = rows[order], starts[order], lengths[order]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        source = np.repeat(starts - offsets[:-1], lengths)
        source += np.arange(len(source))
        sampled = batch.loss_mask[source]
        sampled[offsets[:-1]] = False
        return cls(batch, rows, offsets, source, sampled)

    def __len__(self) -> int:
        return len(self.rows)

    def tensordict(self, columns: Mapping[str, NDArray[np.float32]], **options: Any) -> TensorDict:
        """What a worker is given.

        Args:
            columns: further columns of the batch, (n_token,).
            options: for verl's engine and for the loss, the same for all rows.

        Returns:
            (n_dealt,) nested ``input_ids`` and ``position_ids`` int64, ``loss_mask`` bool and the columns; ``row`` and
            ``role`` int64; and the options.
        """
        offsets = torch.from_numpy(self.offsets)
        positions = np.arange(len(self.source)) - np.repeat(self.offsets[:-1], np.diff(self.offsets))

        def nested(values: NDArray[Any]) -> Tensor:
            return torch.nested.nested_tensor_from_jagged(torch.from_numpy(values), offsets)

        tensors = {
            "input_ids": nested(self.batch.tokens[self.source].astype(np.int64)),
            "position_ids": nested(positions),
            "loss_mask": nested(self.sampled),
            "row": torch.from_numpy(self.rows),
            "role": torch.from_numpy(np.where(self.rows == PADDING, 0, self.batch.role[self.rows]).astype(np.int64)),
        }
        tensors |= {name: nested(column[self.source]) for name, column in columns.items()}
        return TensorDict(
            tensors | {name: NonTensorData(value) for name, value in options.items()}, batch_size=[len(self)]
        )

    def column(self, said: Tensor) -> NDArray[np.float32]:
        """(n_token of the batch,) what an engine said of the sampled tokens, a nested tensor; 0 elsewhere."""
        values = np.zeros(len(self.batch.tokens), np.float32)
        places = np.flatnonzero(self.sampled)
        values[self.source[places]] = said.values().float().numpy()[places - 1]
        return values


def _last_sampled(batch: TokenBatch) -> NDArray[np.int64]:
    """(n_row,) where the last sampled token of each row stands; before the row's beginning where it has none."""
    sampled = np.concatenate(([-1], np.flatnonzero(batch.loss_mask)))
    return sampled[np.searchsorted(sampled, batch.row_offsets[1:]) - 1]


def _balanced_order(lengths: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """(n_dealt,) in which order to hand rows over, so that equal cuts of it hold about equally many tokens.

    Within a rank rows of similar length are neighbours, as micro-batches may be padded to their longest.
    """
    if ranks == 1 or not len(lengths):
        return np.argsort(lengths, kind="stable")
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

    parts = np.array(get_seqlen_balanced_partitions(lengths.tolist(), ranks, equal_size=True))
    return np.take_along_axis(parts, np.argsort(lengths[parts], axis=1, kind="stable"), axis=1).ravel()
