"""The workflow `verifiers`: verifiers runs the episode, and the policy answers its model calls through the gateway."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

import verifiers.v1 as vf
from verifiers.v1.env import RunSlot

from rllm_core.contracts.workflow import Workflow, WorkflowContext
from rllm_core.data.types import Episode, TerminationReason, Trajectory
from rllm_core.errors import RolloutError
from rllm_envs.hosted import SESSION_KEYS
from rllm_envs.sessions import SeatCalls, is_too_long, set_reward, sum_metrics
from rllm_envs.verifiers.client import Seats, SessionsClient
from rllm_envs.verifiers.tasks import Splits
from rllm_gateway.running.rollout_session import OpenedGateway

MAX_TURNS = "max_turns"
"""The stop condition of verifiers for a seat that reached its maximum number of turns."""


ClosedRun = tuple[vf.Trace, SeatCalls]
"""A run of a seat, after its session is closed."""


@dataclass(frozen=True, kw_only=True)
class OpenedEnvironment:
    """The objects that all rollouts of a run share."""

    gateway: OpenedGateway
    environment: vf.Env
    model: vf.ModelContext
    client: SessionsClient
    splits: Splits
    trained: frozenset[str] | None
    """Names of the seats to train. None for all seats that the environment marks trainable."""


class VerifiersWorkflow(Workflow):
    """Runs an episode of verifiers. Each run of a trained seat is a trajectory, with the reward of its trace.

    If the episode or a seat fails, its trajectories have no reward, and their info contains the cause.
    """

    config_keys: ClassVar[frozenset[str]] = SESSION_KEYS

    def __init__(self, context: WorkflowContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._opened: OpenedEnvironment = context.resource

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        opened = self._opened
        self.episode = Episode(id=uid)
        seats = Seats(opened.gateway, self.context, task, uid)

        def add(trace: vf.Trace) -> None:
            seats.add(trace)
            opened.client.add(trace.id, seats)

        slot = RunSlot(opened.splits.find(task))
        running = opened.environment.run_slot(slot, opened.model, on_trace=add)
        try:
            # Nothing is trained on a rollout that ends early, because verifiers has not scored it.
            ended: vf.Episode = await opened.gateway.link.run_unless_stopped(running)
        finally:
            opened.client.remove(seats)
            runs = await seats.close()
        for run in runs:
            run.session.check(run.calls)
        self._fill(self.episode, ended, [(seats.traces[run.key], run) for run in runs])
        return self.episode

    def _fill(self, episode: Episode, ended: vf.Episode, runs: Sequence[ClosedRun]) -> None:
        """Add trajectories, rewards and metrics of an ended episode of verifiers."""
        final = {trace.id for trace in ended.traces}
        # A seat that verifiers runs again has an earlier trace, which belongs to no episode.
        trained = [(trace, run) for trace, run in runs if trace.id in final and self._trains(trace)]
        failure = None if self._opened.environment.complete(ended) else _find_cause(ended)
        for trace, run in trained:
            cause = failure if failure or trace.ok else _describe(trace.errors)
            for trajectory in run.made.trajectories:
                _score(trajectory, trace, cause)
                episode.trajectories.append(trajectory)
        if not episode.trajectories and failure:
            raise RolloutError("environment-failed", f"The episode of verifiers failed: {failure}.")
        rewards = [each.reward for each in episode.trajectories if each.reward is not None]
        episode.is_correct = bool(rewards and max(rewards) > 0)
        episode.termination_reason = _find_reason(trained)
        episode.metrics.update(sum_metrics((run for _, run in runs), {run.key for _, run in trained}))
        episode.metrics.update(_average_metrics(ended))

    def _trains(self, trace: vf.Trace) -> bool:
        named = self._opened.trained
        return bool(trace.agent.trainable if named is None else trace.agent.name in named)


def _score(trajectory: Trajectory, trace: vf.Trace, cause: str | None) -> None:
    """Set the reward of a trace, or the cause of a missing reward."""
    reward = None if cause else float(trace.reward)
    if reward is not None and not math.isfinite(reward):
        cause, reward = f"the reward is {reward}", None
    scored = {} if cause else {name: float(each.value) for name, each in trace.rewards.items() if each is not None}
    set_reward(trajectory, reward, cause, scored)


def _find_cause(ended: vf.Episode) -> str:
    failed = [trace for trace in ended.traces if not trace.ok]
    return _describe([*ended.errors, *(error for trace in failed for error in trace.errors)])


def _describe(errors: Sequence[vf.Error]) -> str:
    return f"{errors[-1].type}: {errors[-1].message}" if errors else "verifiers gave no cause"


def _find_reason(trained: Sequence[ClosedRun]) -> TerminationReason:
    if any(is_too_long(run) for _, run in trained):
        return TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED
    if any(trace.stop_condition == MAX_TURNS for trace, _ in trained):
        return TerminationReason.MAX_TURNS_EXCEEDED
    if any(trace.is_timeout for trace, _ in trained):
        return TerminationReason.TIMEOUT
    return TerminationReason.ENV_DONE


def _average_metrics(ended: vf.Episode) -> Mapping[str, float]:
    """Return the means of the metrics of verifiers. If there are several seats, names begin with the seat."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    several = len(ended.by_agent) > 1
    for trace in ended.traces:
        for name, value in trace.metrics.items():
            if value is not None and math.isfinite(value):
                values[f"{trace.agent.name}/{name}" if several else name].append(float(value))
    return {name: fmean(each) for name, each in values.items()}
