"""Stored episodes under several estimators: the run's stages again, up to the advantages, without a model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from rllm.config import as_config_error, describe, import_modules, known_keys, parse, read_config
from rllm.planning import ByRole, shared_options
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.estimator import ALWAYS_FILLED
from rllm_core.contracts.stage import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode, TrajectoryGroup
from rllm_core.errors import ConfigError
from rllm_core.notices import warn_once
from rllm_core.pipeline import Pipeline
from rllm_core.plugins.choice import choose
from rllm_core.plugins.discovery import CORE
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.section import ROLE_LOSS, Choice
from rllm_record.run_files import CONFIG
from rllm_record.stored_episodes import find_episodes, read_batches

OF_A_BATCH = ("impute_names", "compact_filter", "group", "check_rewards")
"""Stages that run once for each rollout batch of a step, in the order of a run."""
STORED = ALWAYS_FILLED | {"old_logprobs"}
"""Needs that stored episodes fill. The sampler's log-probs replace the log-probs at the start of the update."""
Estimators = ByRole[PluginChoice[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredGroup:
    """A group of one step with its advantages under each estimator."""

    step: int
    group_id: str
    role: str
    trajectories: tuple[str, ...]
    """(n,) uids of the trajectories."""
    rewards: NDArray[np.float64]
    advantages: NDArray[np.float64]
    """(n_estimator, n) mean over the trajectory's sampled tokens."""
    signal: NDArray[np.bool_]
    """(n_estimator,) True if the advantage of any token is not exactly 0."""

    @property
    def name(self) -> str:
        return f"{self.group_id!r} of step {self.step}"


@dataclass(frozen=True, kw_only=True, eq=False)
class RescoredGroups:
    """The result of `rescore`."""

    estimators: tuple[Estimators, ...]
    """The estimators. The first is the reference."""
    groups: tuple[ScoredGroup, ...]


async def rescore(
    path: Path, names: Sequence[Choice], grouping: Choice | None = None, registry: Registry | None = None
) -> RescoredGroups:
    """Compute the advantages of stored episodes under several estimators.

    Args:
        path: a run directory, a directory of episodes, or one file.
        names: the estimators. With fewer than two, the run's own estimators are the reference.
        grouping: grouping of trajectories. None: the run's.
        registry: the plugins to choose from. None: the run's.

    Raises:
        EpisodesError: there are no episodes, or they cannot be read.
        ConfigError: a name or option is unknown, or an estimator needs values that episodes do not contain.
        AdvantageError, RewardError: see `rllm_core.errors`.
    """
    source = find_episodes(path)
    config = RunConfig() if source.run_directory is None else read_stored_config(source.run_directory)
    registry = registry or stored_registry(config)

    def pick(kind: str, choice: Choice, where: str) -> PluginChoice[Any]:
        return choose(registry, kind, choice, where, shared_options(config, kind))

    own = _own_estimators(config, pick) if len(names) < 2 else []
    estimators = (*own, *(ByRole(_check_stored_inputs(pick("estimator", name, "--estimator"))) for name in names))
    chosen_grouping = pick("grouping", grouping or config.rllm.transform.grouping, "--grouping")
    replay = _Replay(config, chosen_grouping, estimators, registry)
    groups: list[ScoredGroup] = []
    for number, file in source.files:
        groups += await replay.step(number, read_batches(file))
    return RescoredGroups(estimators=estimators, groups=tuple(groups))


def label(choice: PluginChoice[Any]) -> str:
    """Return ``grpo``, or ``grpo(norm_adv_by_std_in_grpo=false)`` with the options that are not defaults."""
    options = choice.params.model_dump(mode="json", exclude_defaults=True)
    shown = ", ".join(f"{name}={json.dumps(value)}" for name, value in options.items())
    return f"{choice.plugin.name}({shown})" if shown else str(choice.plugin.name)


def _own_estimators(config: RunConfig, pick: Any) -> list[Estimators]:
    algorithm = config.rllm.algorithm
    default = _check_stored_inputs(pick("estimator", algorithm.adv_estimator, "rllm.algorithm.adv_estimator"))
    by_role = {
        role: _check_stored_inputs(pick("estimator", _without_loss(choice), f"rllm.algorithm.estimator_map.{role}"))
        for role, choice in algorithm.estimator_map.items()
    }
    return [ByRole(default, by_role)]


def _without_loss(choice: Choice) -> Choice:
    return choice if isinstance(choice, str) else {key: each for key, each in choice.items() if key != ROLE_LOSS}


def _check_stored_inputs(choice: PluginChoice[Any]) -> PluginChoice[Any]:
    if missing := sorted(choice.plugin.needs - STORED):
        raise ConfigError(
            "missing-estimator-input",
            f"Estimator {choice.plugin.name!r} needs {', '.join(missing)}, and stored episodes do not contain it.",
            "Compare two other estimators, for example --estimator grpo --estimator rloo.",
        )
    return choice


def read_stored_config(run_directory: Path) -> RunConfig:
    """Return the section ``rllm`` of a run's configuration, with defaults in all other sections.

    Raises:
        ConfigError: the file cannot be read, or a version with other keys wrote it.
    """
    values = {"rllm": read_config(run_directory).get("rllm", {})}
    try:
        return parse(RunConfig, values)
    except ValidationError as error:
        problem = as_config_error(
            describe(error, values, lambda path: str(run_directory / CONFIG), known_keys(RunConfig))
        )
        raise ConfigError(
            problem.code, problem.message, "It may come from a different version of rllm-core."
        ) from error


def stored_registry(config: RunConfig) -> Registry:
    """Return the run's plugins that are installed here or can be imported here.

    Raises:
        ConfigError: a module cannot be imported.
        PluginError: a module registers an invalid plugin.
    """
    import_modules(config.rllm.plugins.import_modules)
    return Registry.load(allow=config.rllm.plugins.allow)


class _Replay:
    """The core's stages from episodes to advantages."""

    def __init__(
        self, config: RunConfig, grouping: PluginChoice[Any], estimators: Sequence[Estimators], registry: Registry
    ) -> None:
        absent: Any = None  # these stages do not sample, reject, train or log
        context = StageContext(
            config=config,
            seed=config.rllm.trainer.seed,
            backend=absent,
            runner=absent,
            grouping=grouping,
            rejection=absent,
            rejection_name="",
            needs=frozenset(),
            estimator_of=estimators[0].get,
            loss_of=absent,
            log=absent,
            max_context=absent,
        )

        def pipeline(names: Iterable[str], context: StageContext) -> Pipeline:
            return Pipeline([choose(registry, "stage", f"{CORE}/{name}", "rescoring") for name in names], context)

        self._of_a_batch = pipeline(OF_A_BATCH, context)
        self._build = pipeline(["build_batch"], context)
        self._estimations = [pipeline(["advantages"], replace(context, estimator_of=each.get)) for each in estimators]

    async def step(self, number: int, batches: Sequence[Sequence[Episode]]) -> list[ScoredGroup]:
        """Return the groups of a step. Rollout batches are grouped separately, as in the run. No group is rejected."""
        groups: list[TrajectoryGroup] = []
        for episodes in batches:
            generated = _make_step(number, episodes)
            await self._of_a_batch.run(generated)
            groups += generated.trajectory_groups
        step = _make_step(number, [episode for episodes in batches for episode in episodes])
        step.trajectory_groups = groups
        if groups:
            await self._build.run(step)
        if step.batch is None:
            return []
        if not step.batch.n_rows:
            warn_once("Steps in which no rollout has sampled tokens are not part of the result.")
            return []
        step.batch = step.batch.with_columns(old_logprobs=step.batch.sampling_logprobs)
        columns = [await self._estimate(pipeline, step) for pipeline in self._estimations]
        return _scored_groups(step, np.stack(columns))

    async def _estimate(self, pipeline: Pipeline, step: TrainStep) -> NDArray[np.float32]:
        estimated = replace(step, metrics={})
        await pipeline.run(estimated)
        advantages = estimated.filled_batch.advantages
        assert advantages is not None
        return advantages


def _make_step(number: int, episodes: Sequence[Episode]) -> TrainStep:
    return TrainStep(
        global_step=number, epoch=0, total_steps=0, tasks=[], generated=list(episodes), episodes=list(episodes)
    )


def _scored_groups(step: TrainStep, columns: NDArray[np.float32]) -> list[ScoredGroup]:
    batch = step.filled_batch
    owners = np.repeat(batch.trajectory, batch.row_lengths)[batch.loss_mask]
    sampled = columns[:, batch.loss_mask].astype(np.float64)
    count = batch.n_trajectories
    lengths = np.maximum(np.bincount(owners, minlength=count), 1)
    advantages = np.stack([np.bincount(owners, row, count) for row in sampled]) / lengths
    has_signal = np.stack([np.bincount(owners, row != 0, count) > 0 for row in sampled])
    groups: list[ScoredGroup] = []
    start = 0
    for group in batch.groups:
        own = slice(start, start + len(group.trajectories))
        start = own.stop
        groups.append(
            ScoredGroup(
                step=step.global_step,
                group_id=group.group_id,
                role=group.group_role,
                trajectories=tuple(each.uid for each in group.trajectories),
                rewards=np.array([each.reward for each in group.trajectories], np.float64),
                advantages=advantages[:, own],
                signal=np.asarray(has_signal[:, own].any(axis=1)),
            )
        )
    return groups
