"""TokenBatch: the columnar form of a training batch, without padding, that algorithms and backends share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.token_buffer import TokenBuffer
from rllm_core.data.types import Trajectory, TrajectoryGroup

_WEIGHT_VERSION = attrgetter("weight_version")
_VERSION_SPANS = attrgetter("version_spans")


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenTargets:
    """Distributions over the vocabulary that the model must approach, such as a teacher's.

    Row ``i`` is the distribution of the batch's sampled token ``i``: the k likeliest tokens at its position. ``n`` is
    the number of sampled tokens in the batch (`TokenBatch.loss_mask`).
    """

    ids: NDArray[np.int32]
    """(n, k) token ids, all different in a row."""
    logprobs: NDArray[np.float32]
    """(n, k) log-probs in nats over the whole vocabulary, at the temperature of the rollouts."""
    weight: float
    """Factor of the mean of the divergences, above 0."""
    beta: float
    """The divergence, from 0 to 1: 0 is KL(target || model), 1 is KL(model || target), and a number between is the
    generalized Jensen-Shannon divergence. See `generalized_jsd` of rllm-backend-kit."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenBatch:
    """Rows of tokens without padding. Row ``r`` contains tokens ``row_offsets[r]:row_offsets[r + 1]``.

    A trajectory is one row. If its history was rewritten, it has one row per segment (see `TokenBuffer`). Per-token
    columns are (n_token,). Log-probs and advantages are only meaningful if `loss_mask` is True.
    """

    tokens: NDArray[np.int32]
    row_offsets: NDArray[np.int64]
    """(n_row + 1,)"""
    loss_mask: NDArray[np.bool_]
    """(n_token,) True if the model sampled the token."""
    sampling_logprobs: NDArray[np.float32]
    """(n_token,) log-probs that the sampler reported. NaN if it reported none, 0 if `loss_mask` is False."""
    trajectory: NDArray[np.int32]
    """(n_row,) index of the row's trajectory, counted over all groups in order."""
    group: NDArray[np.int32]
    """(n_row,) index of the row's group."""
    role: NDArray[np.int32]
    """(n_row,) index into `roles`."""
    weight_version: NDArray[np.int32]
    """(n_row,) oldest weight version that sampled a token of the row."""
    roles: tuple[str, ...]
    groups: Sequence[TrajectoryGroup]
    """The groups from which the batch was built."""
    old_logprobs: NDArray[np.float32] | None = None
    """(n_token,) log-probs under the weights at the start of the update."""
    ref_logprobs: NDArray[np.float32] | None = None
    """(n_token,) log-probs under the frozen reference model."""
    values: NDArray[np.float32] | None = None
    """(n_token,) the critic's estimates."""
    sum_pi_squared: NDArray[np.float32] | None = None
    """(n_token,) sum of squared probabilities over the vocabulary, under the weights at the start of the update."""
    advantages: NDArray[np.float32] | None = None
    """(n_token,) advantages, 0 if `loss_mask` is False."""
    returns: NDArray[np.float32] | None = None
    """(n_token,) targets for a critic, NaN if the role's estimator returned none. None if no estimator returned any."""
    observation_weights: NDArray[np.float32] | None = None
    """(n_token,) weights of -log p of tokens that the model must predict, such as observations. 0 for other tokens. A
    backend with `Capabilities.observations` adds their sum, divided by the number of weights above 0 in the optimizer
    step, to the policy's loss. None if there are none."""
    targets: TokenTargets | None = None
    """Distributions to approach. A backend with `Capabilities.targets` adds `TokenTargets.weight` times the mean
    divergence over the sampled tokens of the optimizer step to the policy's loss. None if there are none."""
    token_versions: NDArray[np.int32] | None = None
    """(n_token,) weight version that sampled each token. None if all tokens of each row have the row's
    `weight_version`. Use `versions` to get the versions in both cases."""

    @property
    def n_rows(self) -> int:
        return len(self.row_offsets) - 1

    @property
    def n_trajectories(self) -> int:
        return sum(len(group.trajectories) for group in self.groups)

    @property
    def row_lengths(self) -> NDArray[np.int64]:
        """(n_row,) number of tokens per row."""
        return np.diff(self.row_offsets)

    @property
    def versions(self) -> NDArray[np.int32]:
        """(n_token,) weight version that sampled each token. Only meaningful if `loss_mask` is True."""
        if self.token_versions is not None:
            return self.token_versions
        return np.repeat(self.weight_version, self.row_lengths)

    @property
    def unknown_logprobs(self) -> NDArray[np.bool_]:
        """(n_token,) True for sampled tokens without a log-prob in `sampling_logprobs`."""
        return np.isnan(self.sampling_logprobs)

    def old_logprobs_from(self, computed: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return `sampling_logprobs`, (n_token,), replaced by `computed` in rows with an unknown log-prob.

        All values of a row have the same source, so that the importance ratio of a sequence compares two policies.
        """
        unknown = np.zeros(self.n_rows, np.bool_)
        unknown[np.searchsorted(self.row_offsets, np.flatnonzero(self.unknown_logprobs), side="right") - 1] = True
        return np.where(np.repeat(unknown, self.row_lengths), computed, self.sampling_logprobs)

    def with_columns(self, **columns: Any) -> TokenBatch:
        """Return a copy with per-token columns filled. Arrays are shared, not copied.

        Raises:
            ValueError: a column is not (n_token,).
        """
        for name, column in columns.items():
            if column.shape != self.tokens.shape:
                raise ValueError(f"column {name!r} has shape {column.shape}, the batch has {self.tokens.shape} tokens")
        return replace(self, **columns)


def build_batch(groups: Sequence[TrajectoryGroup]) -> TokenBatch:
    """Concatenate the trajectories of all groups. Segments without a sampled token have no row."""
    roles = tuple(dict.fromkeys(group.group_role for group in groups))
    role_index = {role: index for index, role in enumerate(roles)}
    columns: list[tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.bool_]]] = []
    lengths: list[int] = []
    owners: list[int] = []
    pieces: list[NDArray[np.int32]] = []
    mixed = any(_is_mixed(trajectory) for group in groups for trajectory in group.trajectories)
    trajectory_index = -1
    for group_index, group in enumerate(groups):
        role = role_index[group.group_role]
        for trajectory in group.trajectories:
            trajectory_index += 1
            buffer = trajectory.tokens
            sampled_by = _versions(trajectory, buffer) if mixed else None
            for start, end, version in _rows(trajectory, buffer):
                if sampled_by is not None:
                    pieces.append(sampled_by[start:end])
                columns.append(buffer.columns(start, end))
                lengths.append(end - start)
                owners += trajectory_index, group_index, role, version
    ids, logprobs, sampled = zip(*columns, strict=True) if columns else ((), (), ())
    trajectories, group_indices, role_indices, versions = np.array(owners, np.int32).reshape(-1, 4).T
    return TokenBatch(
        tokens=_join(ids, np.dtype(np.int32)),
        row_offsets=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64),
        loss_mask=_join(sampled, np.dtype(np.bool_)),
        sampling_logprobs=_join(logprobs, np.dtype(np.float32)),
        trajectory=trajectories,
        group=group_indices,
        role=role_indices,
        weight_version=versions,
        roles=roles,
        groups=groups,
        token_versions=_join(pieces, np.dtype(np.int32)) if mixed else None,
    )


def _is_mixed(trajectory: Trajectory) -> bool:
    """Return True if several weight versions sampled the trajectory's tokens."""
    return len(set(map(_WEIGHT_VERSION, trajectory.steps))) > 1 or any(map(_VERSION_SPANS, trajectory.steps))


def _versions(trajectory: Trajectory, buffer: TokenBuffer) -> NDArray[np.int32]:
    """Return the weight version, (n,), of each token of the buffer. Prompt tokens have the version of the response to
    them."""
    versions = np.empty(len(buffer), np.int32)
    end = 0
    for step in trajectory.steps:
        versions[end : step.span.end] = step.weight_version
        at = step.span.response_start
        for span in step.version_spans:
            versions[at : at + span.tokens] = span.version
            at += span.tokens
        end = step.span.end
    return versions


def _rows(trajectory: Trajectory, buffer: TokenBuffer) -> list[tuple[int, int, int]]:
    """Return start, end and oldest weight version of each segment with a sampled token."""
    if len(buffer.segment_starts) == 1 and not buffer.silent_turns:
        # This is by far the most common case, and reading the span of every step is slower than copying the tokens.
        return [(0, len(buffer), min(map(_WEIGHT_VERSION, trajectory.steps)))]
    versions: dict[int, int] = {}
    for step in trajectory.steps:
        start, response_start, end = step.span
        if end > response_start:
            versions[start] = min(versions.get(start, step.weight_version), step.weight_version)
    segments = pairwise([*buffer.segment_starts, len(buffer)])
    return [(start, end, versions[start]) for start, end in segments if start in versions]


def _join(pieces: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.concatenate(pieces) if pieces else np.empty(0, dtype)
