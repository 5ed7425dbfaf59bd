"""The shape of a tree: the path to each leaf, which `Trajectory.info` stores, and the segments that leaves share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rllm_core.data.types import Trajectory

BRANCH = "branch"
"""Key of `Trajectory.info` for a `Branch`, as JSON data."""


class Fork(NamedTuple):
    """The place of a fork, and the number of one continuation there."""

    step: int
    """Number of model calls that are completely before the fork."""
    token: int
    """Number of tokens of the next call that are before the fork."""
    child: int
    """Number of this continuation, from 0."""


@dataclass(frozen=True)
class Branch:
    """The path from the root of a tree to a leaf."""

    tree: str
    """Name of the tree. It is unique within the trajectories of a task."""
    forks: tuple[Fork, ...] = ()
    """The forks on the path, in order."""

    def store_in(self, trajectory: Trajectory) -> None:
        """Write the path into the trajectory's info."""
        trajectory.info[BRANCH] = {"tree": self.tree, "forks": [list(fork) for fork in self.forks]}

    @classmethod
    def read_from(cls, trajectory: Trajectory) -> Branch | None:
        """Return the path of a trajectory. None if it is no leaf of a tree."""
        found = trajectory.info.get(BRANCH)
        return None if found is None else cls(found["tree"], tuple(Fork(*fork) for fork in found["forks"]))


@dataclass(frozen=True)
class Segment:
    """A part of a tree without forks: the tokens between two forks, or before the first or after the last fork."""

    leaves: tuple[int, ...]
    """Indices of the leaves that contain these tokens."""
    share: float
    """Share of the tree: 1 for the root. The continuations of a fork divide the share of the segment before it."""
    next: tuple[Segment, ...]
    """The continuations after this segment. Empty for the last segment of a leaf."""

    def leaf_shares(self) -> list[tuple[int, float]]:
        """Return the index and the share of each leaf. The shares have the sum `share`."""
        if not self.next:
            return [(leaf, self.share / len(self.leaves)) for leaf in self.leaves]
        return [each for segment in self.next for each in segment.leaf_shares()]


def join_paths(branches: Sequence[Branch], leaves: Sequence[int], depth: int = 0, share: float = 1.0) -> Segment:
    """Return the segment that contains these leaves of one tree, after the first `depth` forks of their paths.

    Continuations without a leaf do not count, for example if a filter removed it.
    """
    continuations: dict[Fork, list[int]] = {}
    for leaf in leaves:
        if len(branches[leaf].forks) > depth:
            continuations.setdefault(branches[leaf].forks[depth], []).append(leaf)
    following = [
        join_paths(branches, below, depth + 1, share / len(continuations)) for _, below in sorted(continuations.items())
    ]
    return Segment(tuple(leaves), share, tuple(following))
