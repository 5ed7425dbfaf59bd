"""A runner for rewards that compare the rollouts of a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from rllm.planning.scoring import PartialScore, Scorer
from rllm_core.contracts.reward import Rollout
from rllm_core.contracts.stage import RolloutRequest
from rllm_core.contracts.workflow import Workflow
from rllm_core.data.types import Episode
from rllm_core.rollout.runner import RolloutRunner, RolloutSetup, RunnerSettings
from rllm_core.rollout.waits import open_rollout

MakeScoredWorkflow = Callable[..., Workflow]
"""Makes the workflow of a `RolloutSetup`, with `score` of its context."""


@dataclass(eq=False)
class _Member:
    scorer: Scorer
    partial: PartialScore | None = None
    workflow: Workflow | None = None

    async def score(self, rollout: Rollout) -> None:
        """Compute the rewards that need no other rollout. The workflow receives the sum by `add_score`."""
        self.partial = await self.scorer.score_rollout(rollout)


class GroupRunner(RolloutRunner):
    """Runs all rollouts of a task to their end, and then adds their scores.

    The rewards that compare rollouts run outside the slots and the time limits of rollouts, so a waiting rollout
    occupies no slot. Rollouts that ended before they were scored are not in the group.
    """

    def __init__(self, make_workflow: MakeScoredWorkflow, settings: RunnerSettings, scorer: Scorer) -> None:
        super().__init__(partial(make_workflow, score=scorer), settings)
        self._make_scored = make_workflow
        self._scorer = scorer

    async def run(self, order: RolloutRequest) -> list[Episode]:
        """Return all episodes, as `RolloutRunner.run`."""
        groups = [asyncio.ensure_future(self._run_group(replace(order, tasks=[task]))) for task in order.tasks]
        try:
            return [episode for group in await asyncio.gather(*groups) for episode in group]
        finally:
            for future in groups:
                future.cancel()
            await asyncio.gather(*groups, return_exceptions=True)

    async def _run_group(self, order: RolloutRequest) -> list[Episode]:
        members: dict[str, _Member] = {}

        def make_member(setup: RolloutSetup) -> Workflow:
            # A new try of a rollout replaces the earlier one.
            member = members[setup.uid] = _Member(self._scorer)
            member.workflow = self._make_scored(setup, score=member.score)
            return member.workflow

        episodes = await RolloutRunner(make_member, self._settings, self._slots).run(order)
        scored = [
            (member.workflow, member.partial)
            for episode in episodes
            if (member := members[episode.id]).workflow and member.partial and member.workflow.episode is episode
        ]
        if scored:
            with open_rollout(f"{order.tasks[0].id}:*"):
                scores = await self._scorer.score_group([each for _, each in scored])
            for (workflow, _), score in zip(scored, scores, strict=True):
                workflow.add_score(score)
        return episodes
