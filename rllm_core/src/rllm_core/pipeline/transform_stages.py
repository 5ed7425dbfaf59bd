"""Built-in stages from episodes to groups: compact_filter, group, check_rewards."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Iterable

from rllm_core.algorithms.columns import REWARD_ERROR
from rllm_core.algorithms.filtering import compact_filter, drop_truncated, is_truncated, masked_reasons
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.stage_context import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode, Trajectory, TrajectoryGroup
from rllm_core.errors import PipelineError, RewardError, failures_as
from rllm_core.notices import warn_once
from rllm_core.pipeline.metrics import reward_metrics


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
