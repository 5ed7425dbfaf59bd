"""The outcome of every trajectory of a step, from the decisions of its stages, and the step's update."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.record import Outcome, OutcomeName
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_record.steps.rows import RecordedEpisode, RecordedOutcome, RecordedTrajectory, RecordedUpdate


class Estimate(NamedTuple):
    """The columns of `RecordedOutcome` about a trajectory's advantage."""

    estimator: str | None = None
    baseline: float | None = None
    advantage: float | None = None


def estimates_of(step: TrainStep) -> dict[int, Estimate]:
    """Return the estimates of a step's batch, by Python ``id`` of the trajectory."""
    batch = step.batch
    if batch is None or batch.advantages is None or not step.estimators:
        return {}
    sampled = batch.loss_mask
    owners = np.repeat(batch.trajectory, batch.row_lengths)[sampled]
    advantages = batch.advantages[sampled]
    # The tokens of a trajectory are contiguous.
    first = np.flatnonzero(np.diff(owners, prepend=-1))
    equal = np.zeros(batch.n_trajectories, np.bool_)
    value = np.zeros(batch.n_trajectories)
    if len(first):
        value[owners[first]] = advantages[first]
        equal[owners[first]] = np.minimum.reduceat(advantages, first) == np.maximum.reduceat(advantages, first)
    values = [float(one) if same else None for one, same in zip(value, equal, strict=True)]
    found = [math.nan] * len(values) if step.baselines is None else step.baselines.tolist()
    baselines = [None if math.isnan(baseline) else baseline for baseline in found]
    names = [name for group, name in zip(batch.groups, step.estimators, strict=True) for _ in group.trajectories]
    trajectories = (each for group in batch.groups for each in group.trajectories)
    estimates = map(Estimate, names, baselines, values)
    return {id(trajectory): estimate for trajectory, estimate in zip(trajectories, estimates, strict=True)}


UNEXPLAINED = "unexplained"
"""The rule of a trajectory that a stage of a different package removed without a decision."""


class Origin(NamedTuple):
    """The origin of a trajectory, with the names of the columns of `RecordedOutcome`."""

    uid: str
    rollout_step: int
    batch: int
    episode: str
    name: str


class StepAccount(NamedTuple):
    """Episodes and outcomes of a step."""

    episodes: list[RecordedEpisode]
    """Episodes that were generated in the step."""
    outcomes: list[RecordedOutcome]
    """One outcome for each trajectory that was generated in the step or waited before it."""
    trained: list[Origin]
    """(n_traj of its batch,) origins of the batch's trajectories. Empty without a batch."""


class Accounting:
    """Keeps track of the trajectories that wait for a later step.

    Args:
        waiting: outcomes of the last step before a resume. The run creates its waiting trajectories again, so they
            are found by their group and their place in it.
    """

    def __init__(self, waiting: Sequence[RecordedOutcome] = ()) -> None:
        self._waiting: list[tuple[Trajectory, Origin]] = []
        self._recorded: dict[str, list[list[Origin]]] = defaultdict(list)
        by_peers: dict[frozenset[str], list[Origin]] = defaultdict(list)
        groups: dict[frozenset[str], str] = {}
        for recorded in waiting:
            outcome = recorded.outcome
            if outcome.outcome == "waiting" and outcome.group is not None:
                together = frozenset((outcome.trajectory, *outcome.peers))
                groups[together] = outcome.group
                by_peers[together].append(
                    Origin(outcome.trajectory, recorded.rollout_step, recorded.batch, recorded.episode, recorded.name)
                )
        for together, origins in by_peers.items():
            self._recorded[groups[together]].append(origins)

    def account_for(self, step: TrainStep, tasks: dict[str, Any]) -> StepAccount:
        """Return the episodes and outcomes of a step.

        Args:
            step: a step after all its stages.
            tasks: task id -> data of the task. Tasks may be missing.
        """
        origins = {id(trajectory): origin for trajectory, origin in self._waiting}
        origins |= {id(trajectory): origin for trajectory, origin in _iterate_trajectories(step)}
        outcomes: dict[int, RecordedOutcome] = {}
        decided = {id(each): (each, decision) for decision in step.decisions for each in decision.trajectories}
        for group in {id(each.group): each.group for each in step.decisions}.values():
            self._recognize(group, origins)
        for group in step.trajectory_groups:
            self._recognize(group, origins)
        named = _StepTrajectories(step, origins)
        for known, (trajectory, decision) in decided.items():
            outcomes[known] = _outcome(
                named, trajectory, decision.outcome, decision.rule, decision.group, dict(decision.numbers)
            )
        for group in step.trajectory_groups:
            outcome: OutcomeName = "dropped" if step.skip_reason else "trained"
            rule = f"skipped/{step.skip_reason}" if step.skip_reason else ""
            for trajectory in group.trajectories:
                if id(trajectory) not in outcomes:
                    outcomes[id(trajectory)] = _outcome(named, trajectory, outcome, rule, group, {})
        for episode in step.generated:
            for trajectory in episode.trajectories:
                if id(trajectory) not in outcomes:
                    outcomes[id(trajectory)] = _outcome(named, trajectory, "dropped", UNEXPLAINED, None, {})
        self._waiting = [
            (trajectory, origins[known])
            for known, (trajectory, decision) in decided.items()
            if decision.outcome == "waiting" and known in origins
        ]
        trained = {known for known, recorded in outcomes.items() if recorded.outcome.outcome == "trained"}
        groups = () if step.batch is None else step.batch.groups
        in_batch = [_origin(step, each, origins) for group in groups for each in group.trajectories]
        return StepAccount(list(_episodes(step, trained, tasks)), list(outcomes.values()), in_batch)

    def _recognize(self, group: TrajectoryGroup | None, origins: dict[int, Origin]) -> None:
        """Add the origins of a group's trajectories, if the group waited before a resume."""
        if group is None or all(id(trajectory) in origins for trajectory in group.trajectories):
            return
        candidates = self._recorded.get(group.group_id, [])
        place = next((i for i, each in enumerate(candidates) if len(each) == len(group.trajectories)), None)
        if place is not None:
            named = zip(group.trajectories, candidates.pop(place), strict=True)
            origins |= {id(trajectory): origin for trajectory, origin in named}


def _iterate_trajectories(step: TrainStep) -> Iterator[tuple[Trajectory, Origin]]:
    for number, episodes in enumerate(step.generated_by_batch):
        for episode in episodes:
            uid = _uid(step.global_step, number, episode.id)
            for place, trajectory in enumerate(episode.trajectories):
                yield trajectory, Origin(f"{uid}/{place}", step.global_step, number, uid, trajectory.name)


def _episodes(step: TrainStep, trained: set[int], tasks: dict[str, Any]) -> Iterator[RecordedEpisode]:
    for number, episodes in enumerate(step.generated_by_batch):
        for episode in episodes:
            uid = _uid(step.global_step, number, episode.id)
            yield RecordedEpisode(
                uid=uid,
                step=step.global_step,
                batch=number,
                episode=episode,
                trajectories=tuple(
                    RecordedTrajectory(
                        uid=f"{uid}/{place}",
                        trajectory=each,
                        reward_given=step.given_rewards.get(id(each), each.reward),
                        reward_used=each.reward if id(each) in trained else None,
                    )
                    for place, each in enumerate(episode.trajectories)
                ),
                task=tasks.get(episode.task_id),
            )


def _uid(step: int, number: int, episode: str) -> str:
    return f"{step}.{number}:{episode}"


_NONE = Estimate()


class _StepTrajectories:
    """Origins, peers and estimates of a step's trajectories."""

    def __init__(self, step: TrainStep, origins: dict[int, Origin]) -> None:
        self.step = step.global_step
        self._step = step
        self._origins = origins
        self._groups: dict[int, tuple[dict[int, int], tuple[str, ...]]] = {}
        self._estimates = estimates_of(step)

    def origin(self, trajectory: Trajectory) -> Origin:
        return _origin(self._step, trajectory, self._origins)

    def estimate(self, trajectory: Trajectory) -> Estimate:
        return self._estimates.get(id(trajectory), _NONE)

    def peers(self, trajectory: Trajectory, group: TrajectoryGroup | None) -> tuple[str, ...]:
        """Return the uids of the other trajectories in the group."""
        if group is None:
            return ()
        if id(group) not in self._groups:
            places = {id(member): place for place, member in enumerate(group.trajectories)}
            self._groups[id(group)] = places, tuple(self.origin(member).uid for member in group.trajectories)
        places, uids = self._groups[id(group)]
        place = places.get(id(trajectory))
        return uids if place is None else (*uids[:place], *uids[place + 1 :])


def _outcome(
    named: _StepTrajectories,
    trajectory: Trajectory,
    outcome: OutcomeName,
    rule: str,
    group: TrajectoryGroup | None,
    numbers: dict[str, float],
) -> RecordedOutcome:
    origin, estimate = named.origin(trajectory), named.estimate(trajectory)
    return RecordedOutcome(
        outcome=Outcome(
            step=named.step,
            trajectory=origin.uid,
            outcome=outcome,
            rule=rule,
            numbers=numbers,
            group=None if group is None else group.group_id,
            peers=named.peers(trajectory, group),
        ),
        rollout_step=origin.rollout_step,
        batch=origin.batch,
        episode=origin.episode,
        name=origin.name,
        estimator=estimate.estimator,
        baseline=estimate.baseline,
        advantage=estimate.advantage,
    )


def _origin(step: TrainStep, trajectory: Trajectory, origins: dict[int, Origin]) -> Origin:
    """Return the origin of a trajectory. Its episode is empty if a grouping created the trajectory."""
    known = origins.get(id(trajectory))
    if known is not None:
        return known
    return Origin(f"{step.global_step}:{trajectory.uid or trajectory.name}", step.global_step, 0, "", trajectory.name)


def recorded_update(
    step: TrainStep, trained: Sequence[Origin], backend: str, max_response_length: int
) -> RecordedUpdate | None:
    """Return the update of a step. None if the step made no update.

    Args:
        step: a step after all its stages.
        trained: (n_traj of its batch,) origins of the batch's trajectories.
        backend: name of the backend.
        max_response_length: ``data.max_response_length`` of the run.
    """
    if step.batch is None or step.update_plan is None or step.update_result is None:
        return None
    return RecordedUpdate(
        batch=step.batch,
        uids=[origin.uid for origin in trained],
        rollout_steps=[origin.rollout_step if origin.episode else None for origin in trained],
        objective=objective_of(step.update_result.made_with or step.update_plan, backend, max_response_length),
        trace=step.update_result.trace,
        optimizer_steps=step.update_result.optimizer_steps,
    )


def objective_of(plan: UpdatePlan, backend: str, max_response_length: int) -> dict[str, Any]:
    """Return the objective of an update.

    Returns:
        A dict with ``backend``, ``losses``, ``aggregation``, ``max_response_length``, ``entropy_coeff``, ``kl`` and
        ``rollout_correction``. ``losses`` contains, for each role, the loss's qualified ``name`` and its ``params``.
        ``kl`` and ``rollout_correction`` are the fields of `UpdatePlan` as dicts, or None.
    """
    return {
        "backend": backend,
        "losses": {
            role: {"name": chosen.registered.qualified_name, "params": chosen.params.model_dump(mode="json")}
            for role, chosen in plan.losses.items()
        },
        "aggregation": plan.aggregation,
        "max_response_length": max_response_length,
        "entropy_coeff": plan.entropy_coeff,
        "kl": None if plan.kl is None else asdict(plan.kl),
        "rollout_correction": None if plan.rollout_correction is None else asdict(plan.rollout_correction),
    }
