"""Built-in stages from tasks to groups: generate, impute_names, compact_filter, group, check_rewards, reject."""

from __future__ import annotations

import math
from collections.abc import Coroutine
from typing import Any

from rllm_core.algorithms.filtering import compact_filter, drop_truncated, masked_reasons
from rllm_core.contracts.engine import SamplingParams
from rllm_core.contracts.plugin import NoParams
from rllm_core.errors import CheckpointError, PipelineError, RewardError, RllmError
from rllm_core.pipeline.context import StageContext
from rllm_core.pipeline.step import TrainStep
from rllm_core.rollout.runner import RolloutOrder
from rllm_core.seeding import derive_seed
from rllm_core.tracking.metrics import episode_metrics, reward_metrics
from rllm_core.types import Trajectory, TrajectoryGroup


class Generate:
    """Plays every task of the step `rllm.rollout.n` times."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._context = context

    async def __call__(self, step: TrainStep) -> None:
        config = self._context.config
        sampling = SamplingParams(
            max_tokens=config.data.max_response_length,
            seed=derive_seed(self._context.seed, "rollout", step.global_step),
            **config.sampling.train.model_dump(),
        )
        order = RolloutOrder(tasks=step.tasks, rollouts=config.rllm.rollout.n, sampling=sampling, label="train")
        step.generated = await self._context.runner.run(order)
        step.episodes = list(step.generated)
        step.metrics |= episode_metrics(step.episodes)
        if not any(episode.trajectories for episode in step.episodes):
            step.skip("nothing_generated")


class ImputeNames:
    """Gives trajectories without a name one: ``agent``, or ``agent_0``, ``agent_1``, … when there are several."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        pass

    async def __call__(self, step: TrainStep) -> None:
        for episode in step.episodes:
            nameless = [trajectory for trajectory in episode.trajectories if not trajectory.name]
            for index, trajectory in enumerate(nameless):
                trajectory.name = "agent" if len(nameless) == 1 else f"agent_{index}"


class CompactFilter:
    """Takes attempts that ended in masked ways out of the step, and trajectories whose last answer was cut off.

    (`rllm.compact_filtering`, `rllm.agent.overlong_filter`, `rllm.mask_truncated_samples`)
    """

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._masked = masked_reasons(context.config.rllm)
        self._mask_truncated = context.config.rllm.mask_truncated_samples

    async def __call__(self, step: TrainStep) -> None:
        if self._masked:
            step.episodes, dropped = compact_filter(step.episodes, self._masked)
            for reason in sorted(self._masked):
                step.metrics[f"batch/masked_{reason.value}"] = float(dropped[reason.value])
        if self._mask_truncated:
            step.episodes, truncated = drop_truncated(step.episodes)
            step.metrics["batch/masked_truncated"] = float(truncated)
        if (self._masked or self._mask_truncated) and not step.episodes:
            step.skip("everything_masked")


class Group:
    """Puts trajectories into groups (`rllm.transform.grouping`)."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._chosen = context.grouping
        self._grouping = context.grouping.registered.load()

    async def __call__(self, step: TrainStep) -> None:
        step.trajectory_groups = self._groups(step)
        breaks = sum(trajectory.tokens.prefix_breaks for trajectory in _trajectories(step.trajectory_groups))
        for group in step.trajectory_groups:
            if len(group.metadata) not in (0, len(group.trajectories)):
                raise PipelineError(
                    f"Grouping {self._chosen.plugin.name!r} gave group {group.group_id!r} {len(group.trajectories)} "
                    f"trajectories and {len(group.metadata)} metadata entries.",
                    "Give one entry per trajectory, or none at all.",
                )
        made = {id(trajectory) for episode in step.episodes for trajectory in episode.trajectories}
        grouped = {id(trajectory) for trajectory in _trajectories(step.trajectory_groups)}
        step.metrics["batch/trajectories_ungrouped"] = float(len(made - grouped))
        step.metrics["batch/prefix_breaks"] = float(breaks)

    def _groups(self, step: TrainStep) -> list[TrajectoryGroup]:
        """What the grouping returns, if it is a list of groups."""
        name = self._chosen.plugin.name
        try:
            groups = self._grouping(step.episodes, self._chosen.params)
        except RllmError:
            raise
        except Exception as error:
            raise PipelineError(
                f"Grouping {name!r} failed: {type(error).__name__}: {error}.",
                "Mend it; add --debug to see where it failed.",
            ) from error
        if isinstance(groups, Coroutine):
            groups.close()  # or Python complains later that nobody awaited it
        strangers = [] if not isinstance(groups, list) else [g for g in groups if not isinstance(g, TrajectoryGroup)]
        if not isinstance(groups, list) or strangers:
            what = f"a list with {strangers[0]!r:.80} in it" if strangers else f"{groups!r:.80}"
            raise PipelineError(f"Grouping {name!r} returned {what}.", "Mend it: return a list of TrajectoryGroup.")
        return groups


class CheckRewards:
    """Every trajectory must end with a finite reward; see `rllm.algorithm.on_missing_reward`."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._policy = context.config.rllm.algorithm.on_missing_reward

    async def __call__(self, step: TrainStep) -> None:
        missing = 0
        for group in step.trajectory_groups:
            _take_last_step_rewards(group)
            bad = [index for index, trajectory in enumerate(group.trajectories) if not _usable(trajectory.reward)]
            missing += len(bad)
            if bad and self._policy == "error":
                raise _reward_error(group, bad[0])
            if self._policy == "zero":
                for index in bad:
                    group.trajectories[index].reward = 0.0
            elif self._policy == "drop":
                for index in reversed(bad):
                    del group.trajectories[index]
                    if group.metadata:
                        del group.metadata[index]
        step.metrics["batch/missing_rewards"] = float(missing)
        step.trajectory_groups = [group for group in step.trajectory_groups if group.trajectories]
        if not step.trajectory_groups:
            step.skip("no_rewards")
            return
        step.metrics |= reward_metrics(step.trajectory_groups)


class Reject:
    """Decides which groups are trained on now (`rllm.rejection_sample`); the mode may keep groups for later steps."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._mode = context.rejection
        self._name = context.rejection_name

    async def __call__(self, step: TrainStep) -> None:
        step.metrics["batch/groups_before_filter"] = float(len(step.trajectory_groups))
        verdict = self._mode(step.trajectory_groups)
        step.trajectory_groups = verdict.train
        step.metrics["batch/groups_after_filter"] = float(len(verdict.train))
        step.metrics["batch/groups_waiting"] = float(verdict.waiting)
        for reason, count in verdict.dropped.items():
            step.metrics[f"batch/groups_dropped_{reason}"] = float(count)
        if not verdict.train:
            step.skip("waiting_for_more_groups" if verdict.waiting else "all_groups_rejected")

    def state_dict(self) -> dict[str, Any]:
        return {"mode": self._name, "state": self._mode.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["mode"] != self._name and (state["state"] or self._mode.state_dict()):
            raise CheckpointError(
                f"The checkpoint was made with rejection mode {state['mode']}, this run has {self._name}; "
                "what waits in one means nothing to the other.",
                "Resume with the rllm.rejection_sample.mode the run was started with.",
            )
        if state["mode"] == self._name:
            self._mode.load_state_dict(state["state"])


def _trajectories(groups: list[TrajectoryGroup]) -> list[Trajectory]:
    return [trajectory for group in groups for trajectory in group.trajectories]


def _take_last_step_rewards(group: TrajectoryGroup) -> None:
    """When no trajectory of the group has a reward, each takes that of its last step."""
    if any(trajectory.reward is not None for trajectory in group.trajectories):
        return
    for trajectory in group.trajectories:
        if trajectory.steps:
            trajectory.reward = trajectory.steps[-1].reward


def _usable(reward: float | None) -> bool:
    return reward is not None and math.isfinite(reward)


def _reward_error(group: TrajectoryGroup, index: int) -> RewardError:
    trajectory = group.trajectories[index]
    entry = group.metadata[index] if group.metadata else {}
    episode = f"{entry.get('task_id', '?')}:{entry.get('rollout_idx', '?')}"
    return RewardError(
        f"Trajectory {trajectory.name!r} of episode {episode!r} has reward {trajectory.reward}.",
        "Mend the environment or workflow that gave it, or choose rllm.algorithm.on_missing_reward=drop or =zero.",
    )
