"""The interface to verl's workers, and the conversion of a TokenBatch to their inputs and back.

Rows are ragged, without padded tokens. Token columns are nested tensors (jagged layout) with shared offsets. verl's
engines return the same layout, and their value at a position belongs to the next token: the log-prob of a row's token
``j`` is at position ``j - 1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NonTensorData, TensorDict
from torch import Tensor

from rllm_core.contracts.weight_comparison import KnownFault
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import BackendError

if TYPE_CHECKING:
    from tensordict import TensorDict

PADDING = -1
"""The row id of a padding row, which only makes the number of rows divisible."""


@dataclass(frozen=True, kw_only=True)
class MicroBatching:
    """How verl's engine splits a rank's rows into micro-batches."""

    rows: int = 1
    """Each rank receives a multiple of this number of rows. It is the micro-batch size if that is fixed
    (``…micro_batch_size_per_gpu``), and 1 if micro-batches are filled with tokens (``use_dynamic_bsz``)."""
    max_tokens: int | None = None
    """Maximum number of tokens in a micro-batch if it is filled with tokens. A longer row fits into none."""


@dataclass(frozen=True, eq=False)
class ShardedRows:
    """Rows of a batch in the order of their ranks. Ranks get equal numbers of rows, and about equal numbers of tokens.

    A row is cut after its last trained token, because later tokens do not affect training. Rows without a trained token
    are removed. A row's first token is never marked as sampled, because no token predicts it. Padding rows have only
    this one token.
    """

    batch: TokenBatch
    rows: NDArray[np.int64]
    """Row ids in the batch, (n_sharded,). `PADDING` for padding rows."""
    offsets: NDArray[np.int64]
    """Start of each row's tokens, (n_sharded + 1,)."""
    source: NDArray[np.int64]
    """Index of each token in the batch, (offsets[-1],)."""
    sampled: NDArray[np.bool_]
    """True for each token to train on, (offsets[-1],)."""

    @classmethod
    def from_batch(
        cls,
        batch: TokenBatch,
        rows: NDArray[np.int64],
        ranks: int,
        micro: MicroBatching,
        trained: NDArray[np.bool_] | None = None,
    ) -> ShardedRows:
        """Distribute `rows`, ids in the batch, over `ranks`.

        Args:
            batch: the rows' batch.
            rows: (n_row,) row ids.
            ranks: number of ranks.
            micro: micro-batches of the ranks.
            trained: (n_token,) tokens to train on. None if they are the sampled tokens.

        Raises:
            BackendError: a row is longer than the maximum micro-batch.
        """
        starts = batch.row_offsets[rows]
        lengths = _last_trained_indices(batch, batch.loss_mask if trained is None else trained)[rows] + 1 - starts
        learns = lengths > 1
        rows, starts, lengths = rows[learns], starts[learns], lengths[learns]
        if micro.max_tokens is not None and len(rows) and int(lengths.max()) > micro.max_tokens:
            raise BackendError(
                "context-too-long",
                f"A row has {int(lengths.max())} tokens, but verl's micro-batches have at most {micro.max_tokens}.",
                "Raise actor_rollout_ref.actor.ppo_max_token_len_per_gpu, and log_prob_max_token_len_per_gpu of "
                "rollout and ref; or lower data.max_prompt_length or data.max_response_length (`rllm sft`: "
                "--max-length).",
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
        """Return the inputs of the workers.

        Args:
            columns: additional columns of the batch, (n_token,).
            options: options for verl's engine and for the loss, the same for all rows.

        Returns:
            A TensorDict (n_sharded,) with nested ``input_ids`` and ``position_ids`` int64, ``loss_mask`` bool and the
            columns, with ``row`` and ``role`` int64, and with the options.
        """
        offsets = torch.from_numpy(self.offsets)
        positions = np.arange(len(self.source)) - np.repeat(self.offsets[:-1], np.diff(self.offsets))

        def to_nested_tensor(values: NDArray[Any]) -> Tensor:
            return torch.nested.nested_tensor_from_jagged(torch.from_numpy(values), offsets)

        tensors = {
            "input_ids": to_nested_tensor(self.batch.tokens[self.source].astype(np.int64)),
            "position_ids": to_nested_tensor(positions),
            "loss_mask": to_nested_tensor(self.sampled),
            "row": torch.from_numpy(self.rows),
            "role": torch.from_numpy(np.where(self.rows == PADDING, 0, self.batch.role[self.rows]).astype(np.int64)),
        }
        tensors |= {name: to_nested_tensor(column[self.source]) for name, column in columns.items()}
        return TensorDict(
            tensors | {name: NonTensorData(value) for name, value in options.items()}, batch_size=[len(self)]
        )

    def column(self, output: Tensor) -> NDArray[np.float32]:
        """Return a column (n_token of the batch,) with an engine's values (nested) for sampled tokens, 0 elsewhere."""
        values = np.zeros(len(self.batch.tokens), np.float32)
        places = np.flatnonzero(self.sampled)
        values[self.source[places]] = output.values().float().numpy()[places - 1]
        return values


def _last_trained_indices(batch: TokenBatch, trained: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the index of each row's last trained token, (n_row,). It is before the row's start if the row has none."""
    places = np.concatenate(([-1], np.flatnonzero(trained)))
    return places[np.searchsorted(places, batch.row_offsets[1:]) - 1]


def _balanced_order(lengths: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """Return an order of the rows, (n_sharded,), so that all ranks get about the same number of tokens.

    Within a rank, rows are sorted by length, because micro-batches may be padded to their longest row.
    """
    if ranks == 1 or not len(lengths):
        return np.argsort(lengths, kind="stable")
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

    parts = np.array(get_seqlen_balanced_partitions(lengths.tolist(), ranks, equal_size=True))
    return np.take_along_axis(parts, np.argsort(lengths[parts], axis=1, kind="stable"), axis=1).ravel()


class Workers(Protocol):
    """The data-parallel ranks of one model. Every call blocks until all ranks have answered.

    A batch is split over the ranks in equal parts, in order; see `rllm_verl.rows`. Results are in the batch's order.
    """

    @property
    def data_parallel_size(self) -> int:
        """Number of ranks that receive different rows."""

    def set_loss_fn(self, loss: Any) -> None:
        """Send the loss of the next `forward_backward` calls to all ranks; see `SerializedLoss`."""

    def compute_log_prob(self, data: TensorDict) -> TensorDict:
        """Return nested ``log_probs``, and ``entropy`` or ``sum_pi_squared`` if `data` requests them."""

    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict:
        """Return nested ``log_probs`` of the reference model."""

    def with_fault(self, fault: KnownFault) -> AbstractContextManager[None]:
        """Change the weights in this context, see `rllm_verl.worker_group`."""

    def optimizer_zero_grad(self) -> None:
        """Clear the gradients."""

    def forward_backward(self, data: TensorDict) -> TensorDict:
        """Add a minibatch's gradient. The result's ``metrics`` contain the ``loss``, summed over ranks, and the loss's
        notes."""

    def optimizer_step(self, parameters: dict[str, float]) -> dict[str, float]:
        """Clip, step with these values for the optimizer's parameter groups, clear the gradients, and return metrics.

        ``grad_norm`` is the norm before clipping. If it is not finite, verl makes no step.
        """
