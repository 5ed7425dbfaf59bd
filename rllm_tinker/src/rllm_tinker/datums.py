"""Conversion of TokenBatch rows and losses to the service's datums and losses, and of its results to batch columns.

The service computes some losses of rllm itself. Aggregation and rollout correction give each token's loss a weight of
at least 0. All these losses except `dro` are proportional to the advantage (or to the weight of a token's log-prob). So
rllm multiplies that by the weight, and the service's sum over tokens equals rllm's loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.loss import LossPlugin
from rllm_core.data.batch import TokenBatch
from rllm_tinker.exchange import Datum


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a batch, each cut after its last sampled token. Rows without a sampled token are removed.

    The target at position i of a row is its token i + 1, so the batch's columns are read from the second token.
    """

    batch: TokenBatch
    rows: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    """Start and end of each row's targets in the batch's columns."""

    @classmethod
    def from_batch(cls, batch: TokenBatch, rows: Sequence[int] | NDArray[np.int64]) -> Rows:
        chosen: list[int] = []
        spans: list[tuple[int, int]] = []
        for row in map(int, rows):
            start, end = int(batch.row_offsets[row]), int(batch.row_offsets[row + 1])
            sampled = np.flatnonzero(batch.loss_mask[start + 1 : end])
            if len(sampled):
                chosen.append(row)
                spans.append((start + 1, start + 2 + int(sampled[-1])))
        return cls(batch, tuple(chosen), tuple(spans))

    def __len__(self) -> int:
        return len(self.rows)

    def datums(self, **columns: NDArray[np.float32]) -> list[Datum]:
        """Return one datum per row. These columns of the batch, (n_token,), become the loss inputs."""
        tokens = self.batch.tokens
        return [
            Datum(
                tokens=tokens[start - 1 : end - 1],
                targets=tokens[start:end],
                inputs={name: column[start:end] for name, column in columns.items()},
            )
            for start, end in self.spans
        ]

    def column(self, values: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return a column (n_token of the batch,) with the service's values for each row's targets, and 0 elsewhere."""
        column = np.zeros(len(self.batch.tokens), np.float32)
        for (start, end), of_row in zip(self.spans, values, strict=True):
            column[start:end] = of_row
        return column

    @property
    def sampled_indices(self) -> NDArray[np.int64]:
        """Indices of the sampled tokens in the batch, (n_sampled,), row after row."""
        parts = [start + np.flatnonzero(self.batch.loss_mask[start:end]) for start, end in self.spans]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def by_role(self) -> Iterator[tuple[str, Rows]]:
        """Yield each role that has rows, with its rows."""
        for index, role in enumerate(self.batch.roles):
            chosen = [row for row in self.rows if self.batch.role[row] == index]
            if chosen:
                yield role, Rows.from_batch(self.batch, chosen)


@dataclass(frozen=True, kw_only=True)
class NativeLoss:
    """The service's equivalent of one rllm loss."""

    name: str
    """The service's name for the loss."""
    config: Mapping[str, float] = field(default_factory=dict)
    weights_of: str = "advantages"
    """The factor of a token's loss in the service: ``advantages``, or ``weights`` of a log-prob."""
    reads_advantages: bool = True
    """True if the loss depends on the advantages. If False, all sampled tokens count equally."""
    sequence_ratio: bool = False
    """True if the service needs a mask of the tokens that form a row's ratio."""


def native_loss(choice: PluginChoice[LossPlugin[Any]]) -> NativeLoss | None:
    """Return the service's equivalent of a loss. None if only `forward_backward_custom` can compute it.

    Losses are compared by qualified name, because another package can have its own loss named ``ppo``.
    """
    params: Any = choice.params
    match choice.qualified_name:
        case "rllm-core/ppo" if params.clip_ratio_c is None:
            return NativeLoss(name="ppo", config=_bounds(*params.eps_low_high))
        case "rllm-core/importance_sampling":
            return NativeLoss(name="importance_sampling")
        case "rllm-core/reinforce":
            return NativeLoss(name="cross_entropy", weights_of="weights")
        case "rllm-estimators/cispo":
            return NativeLoss(name="cispo", config=_bounds(*params.eps_low_high))
        case "rllm-estimators/gspo":
            bounds = _bounds(params.sequence_eps_clip, params.sequence_eps_clip_high)
            return NativeLoss(name="gspo", config=bounds, sequence_ratio=True)
        case "rllm/cross_entropy":
            return NativeLoss(name="cross_entropy", weights_of="weights", reads_advantages=False)
        case "rllm-estimators/dro":
            return NativeLoss(name="dro", config={"beta": params.beta})
    return None


def columns_of(
    loss: NativeLoss,
    advantages: NDArray[np.float32],
    old_logprobs: NDArray[np.float32],
    loss_mask: NDArray[np.bool_],
    weights: NDArray[np.float32],
) -> dict[str, NDArray[np.float32]]:
    """Return the inputs of a loss, each (n_token,). `weights` must be 0 for tokens outside the loss."""
    weighted = weights * advantages if loss.reads_advantages else weights
    if loss.weights_of == "weights":
        return {"weights": weighted}
    columns = {"logprobs": old_logprobs, "advantages": weighted}
    if loss.sequence_ratio:
        columns["sequence_ratio_mask"] = loss_mask.astype(np.float32)
    return columns


def _bounds(low: float, high: float) -> dict[str, float]:
    """Return the service's bounds of the ratio. rllm's bounds are distances from 1."""
    # A ratio is never below 0, so a negative bound has no effect. The service rejects negative values.
    return {"clip_low_threshold": max(0.0, 1 - low), "clip_high_threshold": 1 + high}
