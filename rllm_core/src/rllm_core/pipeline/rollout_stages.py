"""Built-in stages that generate rollouts: generate, impute_names, greedy_baseline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from rllm_core.algorithms.columns import GREEDY_REWARD
from rllm_core.contracts.engine import SamplingParams
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.stage import RolloutRequest, StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode
from rllm_core.errors import RewardError
from rllm_core.pipeline.batch_checks import check_versions
from rllm_core.pipeline.metrics import episode_metrics, find_reward
from rllm_core.pipeline.pipeline import ContextStage
from rllm_core.seeding import derive_seed


class Generate(ContextStage):
    """Runs every task of the batch `rllm.rollout.n` times."""

    async def __call__(self, step: TrainStep) -> None:
        sampling = training_sampling(self._context, step)
        rollouts = self._context.config.rllm.rollout.n
        order = RolloutRequest(
            tasks=step.tasks,
            rollouts=rollouts,
            sampling=sampling,
            label="train",
            priority=step.task_batch,
        )
        step.episodes = list(await self._context.runner.run(order))
        check_versions(step.episodes, sampling.weight_version)
        step.generated += step.episodes
        step.metrics |= episode_metrics(*step.generated_by_batch)
        if not any(episode.trajectories for episode in step.episodes):
            step.skip("nothing_generated")


class ImputeNames(ContextStage):
    """Gives a name to trajectories without one: ``agent``, or ``agent_0``, ``agent_1``, … if there are several."""

    async def __call__(self, step: TrainStep) -> None:
        impute_names(step.episodes)


class GreedyBaseline:
    """Generates one greedy rollout of every task of the batch, if an estimator needs it.

    Every trajectory gets ``info["greedy_reward"]``: the mean reward of the greedy trajectories with the same role and
    task. Greedy rollouts are not trained on. Tasks whose greedy rollout failed are removed from the step. If a greedy
    rollout has no reward, `rllm.algorithm.on_missing_reward` decides.
    """

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._context = context
        self._policy = context.config.rllm.algorithm.on_missing_reward

    async def __call__(self, step: TrainStep) -> None:
        if "greedy_rewards" not in self._context.needs:
            return
        sampling = replace(training_sampling(self._context, step), temperature=0.0, top_p=1.0, top_k=-1)
        order = RolloutRequest(
            tasks=step.tasks, rollouts=1, sampling=sampling, label="greedy", priority=step.task_batch
        )
        greedy = await self._context.runner.run(order)
        check_versions(greedy, sampling.weight_version)
        impute_names(greedy)
        rewards = _rewards_by_task_and_role(greedy)
        failed = {episode.task_id for episode in greedy if episode.error}
        missing = 0
        kept = []
        for episode in step.episodes:
            known = [(episode.task_id, trajectory.name) in rewards for trajectory in episode.trajectories]
            if not all(known):
                missing += 1
                if episode.task_id in failed or self._policy == "drop":
                    step.decide("masked", "greedy_baseline/no_greedy_reward", episode.trajectories)
                    continue
                if self._policy == "error":
                    raise _missing(episode, episode.trajectories[known.index(False)].name)
            for trajectory in episode.trajectories:
                trajectory.info[GREEDY_REWARD] = rewards.get((episode.task_id, trajectory.name), 0.0)
            kept.append(episode)
        step.episodes = kept
        step.count("batch/missing_greedy_rewards", missing)
        if rewards:
            step.metrics["reward/greedy/mean"] = float(np.mean(list(rewards.values())))
        if not step.episodes:
            step.skip("no_greedy_rewards")


def training_sampling(context: StageContext, step: TrainStep) -> SamplingParams:
    """Return the sampling parameters for the batch's rollouts. Each rollout derives its own seed from the seed in
    them."""
    is_fixed = context.config.rllm.async_training.pins_weights
    return SamplingParams(
        weight_version=step.weight_version if is_fixed else None,
        task_batch=step.task_batch,
        max_tokens=context.config.data.max_response_length,
        seed=derive_seed(context.seed, "rollout", step.task_batch),
        **context.config.sampling.train.model_dump(),
    )


def impute_names(episodes: Iterable[Episode]) -> None:
    """Name the trajectories without a name in each episode."""
    for episode in episodes:
        nameless = [trajectory for trajectory in episode.trajectories if not trajectory.name]
        for index, trajectory in enumerate(nameless):
            trajectory.name = "agent" if len(nameless) == 1 else f"agent_{index}"


def _rewards_by_task_and_role(episodes: Iterable[Episode]) -> dict[tuple[str, str], float]:
    """Return mean rewards. A role is omitted if one of its trajectories has no usable reward."""
    rewards: dict[tuple[str, str], list[float | None]] = defaultdict(list)
    for episode in episodes:
        for trajectory in episode.trajectories:
            rewards[episode.task_id, trajectory.name].append(find_reward(trajectory))
    return {
        key: float(np.mean([value for value in values if value is not None]))
        for key, values in rewards.items()
        if None not in values
    }


def _missing(episode: Episode, role: str) -> RewardError:
    return RewardError(
        "missing-reward",
        f"The greedy rollout of task {episode.task_id!r} has no reward for role {role!r}, and an estimator of this run "
        "compares with it.",
        "Return a reward for this role, or set rllm.algorithm.on_missing_reward=drop or =zero.",
    )
