"""Rescoring: all stored episodes of a run, step after step, under every setup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rllm.evaluation.progress import ProgressReport
from rllm_core.algorithms.options import clamp_tasks_per_batch
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.data.types import Episode
from rllm_core.errors import ConfigError, did_you_mean
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.section import Choice
from rllm_view.rescoring.replay import Replay, Rules
from rllm_view.rescoring.scores import ScoredGroup, scored_groups
from rllm_view.rescoring.setups import Picker, Setup, setups_of
from rllm_view.rescoring.source import (
    HOW_TO_KEEP,
    EpisodesError,
    StoredEpisodes,
    find_episodes,
    left_out_stages,
    read_batches,
    read_stored_config,
    stored_registry,
    third_party_stages,
)

NO_REJECTION = "none"


@dataclass(frozen=True, kw_only=True)
class Request:
    """Episodes to rescore, and settings. The run's settings are the defaults."""

    path: Path
    """A run folder, a folder of episodes, or one file."""
    estimators: Sequence[Choice] = ()
    role_estimators: Mapping[str, Choice] = field(default_factory=dict)
    grouping: Choice | None = None
    rejection: Choice | None = None
    """None: no group is rejected, whatever the run did."""
    on_missing_reward: Literal["error", "drop", "zero"] | None = None
    import_modules: Sequence[str] = ()
    """To import besides those the run imported, for plugins that no installed package offers."""


@dataclass(frozen=True, kw_only=True)
class ReplayedStep:
    """One training step."""

    step: int
    episodes: int
    skip_reason: str
    """Why nothing of it was trained on; empty otherwise."""
    metrics: Mapping[str, Mapping[str, float]]
    """By setup: ``advantage/<role>/…``, named and computed as in ``metrics.jsonl``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rescored:
    """The result, for all setups."""

    source: StoredEpisodes
    rules: Rules
    as_run: bool
    """True if grouping, reward check and rejection are the run's."""
    third_party_stages: tuple[str, ...]
    """Stages of the run's pipeline from other packages than the core. They were not replayed."""
    setups: tuple[Setup, ...]
    """Setups, with the reference first."""
    own_left_out: str
    """Why the run's own estimators are not the reference though they should be; empty otherwise."""
    steps: tuple[ReplayedStep, ...]
    groups: tuple[ScoredGroup, ...]


async def rescore(
    request: Request, registry: Registry | None = None, progress: ProgressReport | None = None
) -> Rescored:
    """Read the episodes and estimate their advantages under every setup. Writes nothing.

    Args:
        request: what to rescore.
        registry: the plugins to choose from. None: those that the run had, and `request.import_modules`.
        progress: reports every step.

    Raises:
        EpisodesError: there are no episodes, or they cannot be read.
        ConfigError: a name or option is unknown, or a plugin needs what episodes do not hold.
        AdvantageError, RewardError: see `rllm_core.errors`.
    """
    source = find_episodes(request.path)
    config = _config(source, request)
    if registry is None:
        registry = stored_registry(config, request.import_modules)
    picker = Picker(registry=registry, config=config)
    setups, own_left_out = setups_of(
        picker, request.estimators, request.role_estimators, of_run=source.run_folder is not None
    )
    grouping = request.grouping or config.rllm.transform.grouping
    rules = Rules(
        config=config,
        grouping=picker.pick("grouping", grouping, "--grouping" if request.grouping else "rllm.transform.grouping"),
        rejection=_of_whole_batches(picker.pick("rejection", request.rejection or NO_REJECTION, "--rejection"), source),
        left_out=left_out_stages(config.rllm.pipeline),
        played_greedily=picker.played_greedily(),
    )
    replay = Replay(rules, setups, registry)
    collected = _Collected()
    progress = progress or ProgressReport()
    progress.begin("rescored steps", len(source.files))
    for done, (number, file) in enumerate(source.files, 1):
        await collected.add(replay, number, read_batches(file), setups)
        progress.show(done)
    if not any(step.episodes for step in collected.steps):
        raise EpisodesError(
            "no-episodes",
            f"{source.path} contains no complete episode.",
            HOW_TO_KEEP,
        )
    _require_known_roles(request, collected.groups)
    return Rescored(
        source=source,
        rules=rules,
        as_run=source.run_folder is not None and _as_run(request, config),
        third_party_stages=third_party_stages(config.rllm.pipeline),
        setups=tuple(setups),
        own_left_out=own_left_out,
        steps=tuple(collected.steps),
        groups=tuple(collected.groups),
    )


def _require_known_roles(request: Request, groups: Sequence[ScoredGroup]) -> None:
    """A misspelt role would compare an estimator with itself."""
    roles = sorted({group.role for group in groups})
    for role in request.role_estimators:
        if roles and role not in roles:
            known = f"The roles are {', '.join(roles)}."
            raise ConfigError(
                "unknown-role",
                f"--role-estimator names {role!r}, and no group of these episodes has that role.",
                f"{did_you_mean(role, roles)} {known}".strip(),
            )


@dataclass(kw_only=True)
class _Collected:
    """Results of the steps replayed so far."""

    steps: list[ReplayedStep] = field(default_factory=list)
    groups: list[ScoredGroup] = field(default_factory=list)

    async def add(
        self,
        replay: Replay,
        number: int,
        rounds: Sequence[Sequence[Episode]],
        setups: Sequence[Setup],
    ) -> None:
        """Replay one step, whose tokens are forgotten afterwards."""
        step = await replay.batch(number, rounds)
        metrics: dict[str, Mapping[str, float]] = {}
        columns = []
        for setup in () if step.skip_reason else setups:
            estimated = await replay.estimate(step, setup)
            advantages = estimated.filled_batch.advantages
            assert advantages is not None
            metrics[setup.label] = estimated.metrics
            columns.append(advantages)
        if columns:
            self.groups += scored_groups(step, np.stack(columns))
        self.steps.append(
            ReplayedStep(
                step=number,
                episodes=sum(map(len, rounds)),
                skip_reason=step.skip_reason,
                metrics=metrics,
            )
        )


def _config(source: StoredEpisodes, request: Request) -> RunConfig:
    """The run's configuration, or rllm-core's defaults; with what the request says instead."""
    config = RunConfig() if source.run_folder is None else read_stored_config(source.run_folder)
    if request.on_missing_reward is None:
        return config
    algorithm = config.rllm.algorithm.model_copy(update={"on_missing_reward": request.on_missing_reward})
    return config.model_copy(update={"rllm": config.rllm.model_copy(update={"algorithm": algorithm})})


def _of_whole_batches(rejection: PluginChoice[Any], source: StoredEpisodes) -> PluginChoice[Any]:
    """Limit a mode that fills batches of tasks to the number of stored tasks, as in training.

    This matters if the run has fewer tasks than one whole batch.
    """
    first_round = read_batches(source.files[0][1])[0]
    tasks = len({episode.task_id for episode in first_round})
    return replace(rejection, params=clamp_tasks_per_batch(rejection.params, tasks)) if tasks else rejection


def _as_run(request: Request, config: RunConfig) -> bool:
    rejection = config.rllm.rejection_sample
    mode = rejection.mode if rejection.enable else NO_REJECTION
    return (
        request.grouping in (None, config.rllm.transform.grouping)
        and request.on_missing_reward is None
        and (request.rejection or NO_REJECTION) == mode
    )
