"""The workflow `tree`: a rollout that forks into several leaves, which share their beginnings."""

from __future__ import annotations

import asyncio
import copy
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from rllm.builtin.tree_rollouts.branch import Branch, join_paths
from rllm.builtin.tree_rollouts.leaf import ForkRule, Leaf, Start
from rllm_core.contracts.workflow import Workflow, WorkflowContext
from rllm_core.data.types import Episode
from rllm_core.rollout.options import AgentWorkflowParams
from rllm_core.rollout.workflows import MultiTurnWorkflow


class TreeParams(AgentWorkflowParams):
    """Options of the workflow ``tree``: its size and its forks."""

    leaves: int = Field(10, gt=0)
    """Maximum number of leaves of a tree. Each leaf is a trajectory."""
    branches: int = Field(2, gt=1)
    """Number of continuations of a fork, while the leaves last."""
    fork_surprisal: float | None = Field(None, gt=0)
    """Fork after a sampled token whose negative log-prob is at least this number of nats. null means: fork before each
    turn after the first."""


class TreeWorkflow(Workflow):
    """Workflow whose rollout is a tree. Each leaf is a trajectory with all tokens from the root.

    A continuation of a fork gets an equal share of the leaves that are left. A leaf that ends early does not use its
    share. So the shape of the tree depends on nothing but the tokens before each fork, and not on the order in which
    calls return.

    Only rollouts of training fork. A rollout of validation equals a rollout of `multi_turn_workflow`, with the same
    seeds and calls. The first leaf equals it too, and gives the episode its termination reason and `is_correct`.
    Metrics are means over leaves, weighted by their shares.
    """

    config_keys: ClassVar[frozenset[str]] = MultiTurnWorkflow.config_keys

    def __init__(
        self,
        context: WorkflowContext,
        *,
        leaves: int = 10,
        branches: int = 2,
        fork_surprisal: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(context)
        self._leaves = leaves if context.label == "train" else 1
        self._rule = ForkRule(branches, fork_surprisal)
        self._options = options
        self._grown: list[Leaf] = []

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        self.episode = episode = Episode(id=uid)
        running: list[asyncio.Task[Episode]] = []

        def grow(start: Start) -> None:
            leaf = Leaf(self.context, start, self._rule, grow, **self._options)
            self._grown.append(leaf)
            name = "/".join([uid, *("{}.{}.{}".format(*fork) for fork in start.branch.forks)])
            running.append(group.create_task(leaf.run(copy.deepcopy(task), name)))

        try:
            async with asyncio.TaskGroup() as group:
                grow(Start(branch=Branch(uid), leaves=self._leaves))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            self._finish(episode)
        if any(leaf.cancelled() for leaf in running):
            raise asyncio.CancelledError  # a leaf awaited a task that was cancelled
        return episode

    def _finish(self, episode: Episode) -> None:
        """Fill the episode with the leaves, depth first. This also happens after a timeout."""
        leaves = sorted((leaf for leaf in self._grown if leaf.episode), key=lambda leaf: leaf.branch.forks)
        ends = [leaf.episode for leaf in leaves if leaf.episode]
        if not ends:
            return
        episode.trajectories = [end.trajectories[0] for end in ends]
        for leaf, trajectory in zip(leaves, episode.trajectories, strict=True):
            leaf.branch.store_in(trajectory)
        episode.termination_reason, episode.is_correct = ends[0].termination_reason, ends[0].is_correct
        branches = [leaf.branch for leaf in leaves]
        shares = dict(join_paths(branches, range(len(branches))).leaf_shares())
        for name in {name: None for end in ends for name in end.metrics}:
            weights, numbers = np.array(
                [(shares[index], end.metrics[name]) for index, end in enumerate(ends) if name in end.metrics]
            ).T
            episode.metrics[name] = float(np.average(numbers, weights=weights))
        if self._leaves > 1:
            episode.metrics["leaves"] = float(len(leaves))
            episode.metrics["calls"] = float(sum(leaf.sampled_calls for leaf in leaves))
