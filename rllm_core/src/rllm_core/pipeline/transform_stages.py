"""Built-in stages from episodes to the groups to train on: compact_filter, group, check_rewards, reject."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any, Literal

from rllm_core.algorithms.columns import REWARD_ERROR
from rllm_core.algorithms.grouping import compact_filter, drop_truncated, is_truncated, masked_reasons
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.rejection import RejectionResult
from rllm_core.contracts.stage import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode, Trajectory, TrajectoryGroup
from rllm_core.errors import CheckpointError, PipelineError, RewardError, failures_as
from rllm_core.notices import warn_once
from rllm_core.pipeline.metrics import find_reward, reward_metrics


class CompactFilter:
    """Masks rollouts by their termination reason, and trajectories whose last response was cut off.

    (`rllm.compact_filtering`, `rllm.agent.overlong_filter`, `rllm.mask_truncated_samples`)
    """

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._masked = masked_reasons(context.config.rllm)
        self._mask_truncated = context.config.rllm.mask_truncated_samples

    async def __call__(self, step: TrainStep) -> None:
        if self._masked:
            before = step.episodes
            step.episodes, dropped = compact_filter(before, self._masked)
            for episode in before:
                if episode.termination_reason in self._masked:
                    step.decide("masked", f"compact_filter/{episode.termination_reason.value}", episode.trajectories)
            for reason in sorted(self._masked):
                step.count(f"batch/masked_{reason.value}", dropped[reason.value])
        if self._mask_truncated:
            for trajectory in _trajectories(step.episodes):
                if is_truncated(trajectory):
                    length = {"response_tokens": float(trajectory.response_length)}
                    step.decide("masked", "compact_filter/truncated", [trajectory], numbers=length)
            step.episodes, truncated = drop_truncated(step.episodes)
            step.count("batch/masked_truncated", truncated)
        if (self._masked or self._mask_truncated) and not step.episodes:
            step.skip("everything_masked")


class Group:
    """Groups trajectories (`rllm.transform.grouping`)."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._chosen = context.grouping
        self._grouping = context.grouping.registered.load()

    async def __call__(self, step: TrainStep) -> None:
        step.trajectory_groups = self._groups(step)
        breaks = sum(trajectory.tokens.prefix_breaks for trajectory in _trajectories(step.trajectory_groups))
        for group in step.trajectory_groups:
            if len(group.metadata) not in (0, len(group.trajectories)):
                raise PipelineError(
                    "bad-grouping-result",
                    f"Grouping {self._chosen.plugin.name!r} gave group {group.group_id!r} {len(group.trajectories)} "
                    f"trajectories and {len(group.metadata)} metadata entries.",
                    "Give one entry per trajectory, or none at all.",
                )
        grouped = {id(trajectory) for trajectory in _trajectories(step.trajectory_groups)}
        made = {id(trajectory): trajectory for trajectory in _trajectories(step.episodes)}
        ungrouped = [trajectory for known, trajectory in made.items() if known not in grouped]
        step.decide("masked", "group/ungrouped", ungrouped)
        step.count("batch/trajectories_ungrouped", len(ungrouped))
        step.count("batch/prefix_breaks", breaks)

    def _groups(self, step: TrainStep) -> list[TrajectoryGroup]:
        """Return the result of the grouping after checking that it is a list of groups."""
        name = self._chosen.plugin.name
        with failures_as(PipelineError, f"Grouping {name!r}"):
            groups = self._grouping(step.episodes, self._chosen.params)
        if isinstance(groups, Coroutine):
            groups.close()  # otherwise Python warns later that it was never awaited
        strangers = [] if not isinstance(groups, list) else [g for g in groups if not isinstance(g, TrajectoryGroup)]
        if not isinstance(groups, list) or strangers:
            what = f"a list with {strangers[0]!r:.80} in it" if strangers else f"{groups!r:.80}"
            raise PipelineError(
                "bad-grouping-result",
                f"Grouping {name!r} returned {what}.",
                "Return a list of TrajectoryGroup from it.",
            )
        return groups


class CheckRewards:
    """Checks that every trajectory has a finite reward; see `rllm.algorithm.on_missing_reward`."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._policy = context.config.rllm.algorithm.on_missing_reward

    async def __call__(self, step: TrainStep) -> None:
        missing = 0
        for group in step.trajectory_groups:
            given = [(trajectory, trajectory.reward) for trajectory in group.trajectories]
            _take_last_step_rewards(group)
            bad = [index for index, trajectory in enumerate(group.trajectories) if not _usable(trajectory.reward)]
            missing += len(bad)
            if bad and self._policy == "error":
                raise _reward_error(group, bad[0])
            for reason in {info[REWARD_ERROR] for t in group.trajectories if REWARD_ERROR in (info := t.info)}:
                warn_once(f"rewards are missing: {reason}")
            if self._policy == "zero":
                for index in bad:
                    group.trajectories[index].reward = 0.0
            elif self._policy == "drop":
                without_reward = [group.trajectories[index] for index in bad]
                for index in reversed(bad):
                    del group.trajectories[index]
                    if group.metadata:
                        del group.metadata[index]
                step.decide("dropped", "check_rewards/missing_reward", without_reward, group)
            step.given_rewards |= {id(each): reward for each, reward in given if each.reward is not reward}
        step.count("batch/missing_rewards", missing)
        step.trajectory_groups = [group for group in step.trajectory_groups if group.trajectories]
        if not step.trajectory_groups:
            step.skip("no_rewards")
            return
        step.offered_groups += step.trajectory_groups
        step.metrics |= reward_metrics(step.offered_groups)


def _trajectories(holders: Iterable[TrajectoryGroup | Episode]) -> list[Trajectory]:
    return [trajectory for holder in holders for trajectory in holder.trajectories]


def _take_last_step_rewards(group: TrajectoryGroup) -> None:
    """Give each trajectory its last step's reward if no trajectory of the group has a reward."""
    if any(trajectory.reward is not None for trajectory in group.trajectories):
        return
    for trajectory in group.trajectories:
        if trajectory.steps:
            trajectory.reward = trajectory.steps[-1].reward


def _usable(reward: float | None) -> bool:
    try:
        return reward is not None and math.isfinite(reward)
    except TypeError:  # a workflow may set any object, such as a string or a list
        return False


def _reward_error(group: TrajectoryGroup, index: int) -> RewardError:
    trajectory = group.trajectories[index]
    entry = group.metadata[index] if group.metadata else {}
    episode = f"{entry.get('task_id', '?')}:{entry.get('rollout_idx', '?')}"
    reward: object = trajectory.reward
    where = f"Trajectory {trajectory.name!r} of episode {episode!r}"
    otherwise = "or set rllm.algorithm.on_missing_reward=drop or =zero."
    if why := trajectory.info.get(REWARD_ERROR):
        hint = f"Correct this reward, {otherwise}"
        return RewardError("missing-reward", f"{where} has no reward: {str(why).removesuffix('.')}.", hint)
    shown = f"{reward!r:.80}" if isinstance(reward, str | bytes) else f"{reward!s:.80}"
    return RewardError(
        "missing-reward",
        f"{where} has reward {shown}.",
        f"Return a number from the environment or workflow, {otherwise}",
    )


MOST_BATCHES = 1000
"""Number of batches in one step after which a mode that requests more is considered broken."""


class Reject:
    """Decides which groups are trained on now (`rllm.rejection_sample`). The mode may keep groups for later steps.

    It also runs if this step has no groups, because earlier groups may be waiting. If an earlier stage skipped the
    step, its groups are not passed to the mode. They are counted as dropped for that reason.
    """

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._mode = context.rejection
        self._name = context.rejection_name
        self._waiting: list[TrajectoryGroup] | None = []
        """None after a resume. The first result then contains these groups, and `_waiting_ids` contains their ids."""
        self._waiting_ids: list[str] = []

    async def __call__(self, step: TrainStep) -> None:
        step.count("batch/groups_before_filter", len(step.trajectory_groups))
        if step.skip_reason and step.trajectory_groups:
            step.count(f"batch/groups_dropped_{step.skip_reason}", len(step.trajectory_groups))
            _decide(step, "dropped", step.skip_reason, step.trajectory_groups)
            step.trajectory_groups = []
        result = self._result(step)
        self._waiting = list(result.waiting)
        self._waiting_ids = [group.group_id for group in self._waiting]
        step.metrics["batch/groups_after_filter"] = float(len(result.train))
        step.metrics["batch/groups_waiting"] = float(len(result.waiting))
        step.metrics["batch/rollout_batches"] = float(step.rollout_batches)
        for reason, groups in result.dropped.items():
            step.count(f"batch/groups_dropped_{reason}", len(groups))
            _decide(step, "dropped", reason, groups)
        if not result.more:
            _decide(step, "waiting", "waiting", result.waiting)
        step.trajectory_groups = result.train
        if result.more:
            step.generate_more()
        elif result.train:
            step.go_on()
        else:
            step.skip("waiting_for_more_groups" if result.waiting else "all_groups_rejected")

    def _result(self, step: TrainStep) -> RejectionResult:
        """Return the mode's result after checking that it contains every group."""
        offered, mode = list(step.trajectory_groups), f"Rejection mode {self._name!r}"
        with failures_as(PipelineError, mode):
            result = self._mode(step.trajectory_groups)
            if not isinstance(result, RejectionResult):
                raise PipelineError(
                    "bad-rejection-result", f"{mode} returned {result!r:.80}.", "Return a RejectionResult."
                )
            waited = find_waiting_groups(result, offered, self._waiting_ids) if self._waiting is None else self._waiting
            problem = describe_misplaced_group(result, [*offered, *waited])
        if problem:
            raise PipelineError(
                "bad-rejection-result",
                f"{mode} was offered {len(offered)} groups while {len(waited)} were waiting, and {problem}.",
                "Put every group, as the same object, into one of `train`, `waiting` and `dropped` of the result.",
            )
        if result.more and step.rollout_batches >= MOST_BATCHES:
            raise PipelineError(
                "bad-rejection-result",
                f"{mode} still requests more tasks after {MOST_BATCHES} batches of tasks in one step.",
                "Limit how often the mode returns `more`.",
            )
        if result.more and result.train:
            raise PipelineError(
                "bad-rejection-result",
                f"{mode} requests more tasks and returns {len(result.train)} groups to train on.",
                "Return these groups in `waiting` until the mode has enough groups.",
            )
        return result

    def state_dict(self) -> dict[str, Any]:
        return {"mode": self._name, "state": self._mode.state_dict(), "waiting": self._waiting_ids}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["mode"] != self._name and (state["state"] or self._mode.state_dict()):
            raise CheckpointError(
                "run-changed",
                f"The checkpoint was made with rejection mode {state['mode']}, and this run has {self._name}. "
                "Waiting groups cannot be transferred between modes.",
                "Resume with the value of rllm.rejection_sample.mode with which the run started.",
            )
        if state["mode"] == self._name:
            self._mode.load_state_dict(state["state"])
            self._waiting, self._waiting_ids = None, state["waiting"]


def _decide(
    step: TrainStep, outcome: Literal["waiting", "dropped"], reason: str, groups: Iterable[TrajectoryGroup]
) -> None:
    for group in groups:
        step.decide(outcome, f"reject/{reason}", group.trajectories, group, _collect_numbers(group))


def _collect_numbers(group: TrajectoryGroup) -> dict[str, float]:
    """Return the values that modes use: number of rollouts, number of solved rollouts, smallest and largest reward."""
    rewards = [reward for reward in map(find_reward, group.trajectories) if reward is not None]
    numbers = {"trajectories": float(len(group.trajectories))}
    if group.metadata:
        numbers["solved"] = float(sum(bool(entry.get("is_correct")) for entry in group.metadata))
    if rewards:
        numbers |= {"reward_min": min(rewards), "reward_max": max(rewards)}
    return numbers


def describe_misplaced_group(result: RejectionResult, groups: Sequence[TrajectoryGroup]) -> str:
    """Return the problem of a result, as the end of a sentence about the mode. Empty if it has none.

    Args:
        groups: offered groups and waiting groups. They are compared by identity, because two groups may have the same
            id.
    """
    known = {id(group) for group in groups}
    places: dict[int, str] = {}
    for place, group in _iterate_groups(result):
        if id(group) not in known:
            return f"names group {group.group_id!r} {place}, which was neither offered nor waiting"
        if id(group) in places:
            return f"names group {group.group_id!r} twice: {places[id(group)]} and {place}"
        places[id(group)] = place
    left_out = (group.group_id for group in groups if id(group) not in places)
    return next((f"leaves out group {group_id!r}" for group_id in left_out), "")


def find_waiting_groups(
    result: RejectionResult, offered: Sequence[TrajectoryGroup], ids: Sequence[str]
) -> list[TrajectoryGroup]:
    """Return the groups of the result that were waiting when the checkpoint was made, given their ids.

    A resumed mode has created new objects for them, so only their ids identify them. For an id that the result does not
    contain, the list has a group without trajectories.
    """
    missing, known, found = Counter(ids), {id(group) for group in offered}, []
    for _, group in _iterate_groups(result):
        if id(group) not in known and missing[group.group_id]:
            missing[group.group_id] -= 1
            known.add(id(group))
            found.append(group)
    return [*found, *(TrajectoryGroup(group_id=group_id, trajectories=[]) for group_id in missing.elements())]


def _iterate_groups(result: RejectionResult) -> Iterator[tuple[str, TrajectoryGroup]]:
    yield from (("to train on", group) for group in result.train)
    yield from (("as waiting", group) for group in result.waiting)
    for reason, groups in result.dropped.items():
        yield from ((f"as dropped for {reason!r}", group) for group in groups)
