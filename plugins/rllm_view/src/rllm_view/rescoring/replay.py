"""Replay: stored episodes pass through the stages of a training step again, up to their advantages.

The stages are the run's stages, so grouping, reward checks and the estimator's inputs are the same as in training.
A replay has no model. It generates nothing, and uses the sampling log-probs as log-probs at the start of the update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rllm_core.algorithms.columns import GREEDY_REWARD
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.stage_context import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode
from rllm_core.errors import ConfigError, RewardError
from rllm_core.pipeline import Pipeline, Reject
from rllm_core.plugins.choice import choose
from rllm_core.plugins.discovery import CORE
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_view.rescoring.setups import GREEDY_REWARDS, Setup

OF_A_ROUND = ("impute_names", "compact_filter", "group", "check_rewards")
"""Stages between playing and rejecting, in the order of a run."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules for episodes before estimators receive them."""

    config: RunConfig
    grouping: PluginChoice[Any]
    rejection: PluginChoice[Any]
    left_out: frozenset[str] = frozenset()
    """Stages of `OF_A_ROUND` that the run did not have."""
    played_greedily: bool = False
    """True if the run made greedy rollouts. It dropped rollouts without a greedy rollout."""


class Replay:
    """Replay of a run's steps in order. A rejection mode may keep groups of a step for a later step."""

    def __init__(self, rules: Rules, setups: Sequence[Setup], registry: Registry) -> None:
        self._setups = setups
        self._played_greedily = rules.played_greedily
        context = _context(rules, setups[0])

        def stages(*names: str) -> list[PluginChoice[Any]]:
            return [choose(registry, "stage", f"{CORE}/{name}", "rescoring") for name in names]

        self._of_a_round = Pipeline(stages(*(name for name in OF_A_ROUND if name not in rules.left_out)), context)
        self._reject = Reject(context, NoParams())
        self._build = Pipeline(stages("build_batch"), context)
        (estimation,) = stages("advantages")
        self._estimations: Mapping[str, Pipeline] = {
            setup.label: Pipeline([estimation], replace(context, estimator_of=setup.estimators.get)) for setup in setups
        }

    async def batch(self, global_step: int, rounds: Sequence[Sequence[Episode]]) -> TrainStep:
        """Return a step with its batch, or with the reason for a missing batch.

        The rejection mode receives the groups of each rollout batch in the run's order. The replay uses every rollout
        batch, even if a mode other than the run's does not request it.

        Raises:
            RewardError: a trajectory has no usable reward, and the rules make this an error.
            ConfigError: an estimator compares with greedy rollouts, but the run made none.
        """
        stored = deque(rounds)
        step = _build_step(global_step, stored)
        await self._groups(step)
        train = list(step.trajectory_groups)
        while step.asks_for_more or stored:
            step.take_rollout_batch(_build_step(global_step, stored))
            await self._groups(step)
            train += step.trajectory_groups
        step.trajectory_groups = train
        if train:
            step.go_on()
        await self._build.run(step)
        if step.batch is not None:
            step.batch = step.batch.with_columns(old_logprobs=step.batch.sampling_logprobs)
        return step

    async def _groups(self, step: TrainStep) -> None:
        """From the episodes of a round to the groups to train on."""
        self._leave_out_without_greedy(step)
        try:
            await self._of_a_round.run(step)
        except RewardError as error:
            raise RewardError(error.code, error.message, "Choose --on-missing-reward drop or zero.") from error
        await self._reject(step)

    async def estimate(self, step: TrainStep, setup: Setup) -> TrainStep:
        """A copy of a step that has a batch, with this setup's advantages in it, and with no metrics but theirs."""
        estimated = replace(step, metrics={})
        await self._estimations[setup.label].run(estimated)
        return estimated

    def _leave_out_without_greedy(self, step: TrainStep) -> None:
        """Drop episodes without a greedy reward, as the stage greedy_baseline did in training."""
        told = [e for e in step.episodes if all(GREEDY_REWARD in trajectory.info for trajectory in e.trajectories)]
        if len(told) == len(step.episodes):
            return
        if self._played_greedily or any(episode.trajectories for episode in told):
            step.episodes = told
            if not told:
                step.skip("no_greedy_rewards")
            return
        for chosen in (chosen for setup in self._setups for chosen in setup.estimators):
            if GREEDY_REWARDS in chosen.plugin.needs:
                raise ConfigError(
                    "missing-greedy-reward",
                    f"Estimator {chosen.plugin.name!r} compares with greedy rollouts, but the run made none in step "
                    f"{step.global_step}.",
                    "Remove this estimator, or train with an estimator that needs greedy rollouts, such as remax.",
                )


def _build_step(global_step: int, stored: deque[Sequence[Episode]]) -> TrainStep:
    """The step of the next stored round; an empty one where there is none."""
    episodes = list(stored.popleft()) if stored else []
    return TrainStep(
        global_step=global_step,
        epoch=0,
        total_steps=0,
        tasks=[],
        generated=list(episodes),
        episodes=episodes,
    )


def _context(rules: Rules, setup: Setup) -> StageContext:
    # The replayed stages are the core's. They neither sample nor train nor log.
    absent: Any = None
    return StageContext(
        config=rules.config,
        seed=rules.config.rllm.trainer.seed,
        backend=absent,
        runner=absent,
        grouping=rules.grouping,
        rejection=rules.rejection.registered.load()(rules.rejection.params),
        rejection_name=rules.rejection.registered.qualified_name,
        needs=frozenset(),
        estimator_of=setup.estimators.get,
        loss_of=absent,
        log=absent,
    )
