"""`rllm rescore SESSIONS --reward NAME`: episodes of a gateway's sessions under rewards of the user's choice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rllm.config import import_modules
from rllm.evaluation.outcome import build_outcome
from rllm.evaluation.rescoring import Rescored
from rllm.evaluation.saved_rollout import rollout_from_json
from rllm.evaluation.stopping import run_command
from rllm_core.algorithms.columns import EXTRACTED, REWARD_COMPONENTS, REWARD_ERROR
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.data.types import Episode
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry
from rllm_core.rollout.calls import call
from rllm_core.rollout.scoring import Scorer, WeightedReward
from rllm_record.steps import PlayedEpisode, StepFiles
from rllm_record.steps.files import read_episodes, sampler_of
from rllm_view.rescoring.evaluation import print_results, rewards_of

ATTEMPT = "attempt"
"""Key of a step's info that `rllm gateway episodes` writes: what rewards look at."""


@dataclass(frozen=True, kw_only=True)
class SessionFiles:
    """Files of episodes."""

    folder: Path
    """As the user gave it."""
    files: Sequence[tuple[int, Path]]
    """Step and Parquet file."""


def rescore_sessions(
    stored: SessionFiles, words: Sequence[str], modules: Sequence[str], save: Path | None, as_json: bool
) -> None:
    """Score the rollouts again, and print metrics before and after.

    A reward from the agent's own program stays, and the score is added to it, as in a run.

    Args:
        stored: rollouts to score.
        words: rewards, as on a command line.
        modules: modules to import first.
        save: folder for the result, in the same format. None writes nothing.
        as_json: True to print JSON.

    Raises:
        ConfigError: a reward is unknown, a rollout has no conversation, or `save` contains files.
        RecordError: a file cannot be read or written.
    """
    if save is not None and save.exists() and any(save.iterdir()):
        raise ConfigError("directory-in-use", f"{save} already contains files.", "Choose an empty folder with --save.")
    import_modules(list(modules))
    rewards = rewards_of(words, Registry.load())
    print_results([run_command(_rescored(stored, rewards, save))], as_json)


async def _rescored(stored: SessionFiles, rewards: Sequence[WeightedReward], save: Path | None) -> Rescored:
    # Use a thread, because a reward may start processes, and Ctrl-C must work meanwhile.
    scorer, result = await call(Scorer, rewards, blocking=True), Rescored(stored.folder.name)
    for step, file in stored.files:
        played = read_episodes(file)
        result.before += [build_outcome(each.episode) for each in played]
        await asyncio.gather(*(_score(each, scorer) for each in played))
        result.after += [build_outcome(each.episode) for each in played]
        if save is not None:
            StepFiles(save).write(step, played, (), "tokens", sampler_of(file))
    return result


async def _score(played: PlayedEpisode, scorer: Scorer) -> None:
    """An attempt without a reply has nothing to score, and keeps its reward."""
    attempt = _attempt_of(played.episode)
    if attempt is None:
        return
    score = await scorer(attempt)
    for each in played.trajectories:
        trajectory = each.trajectory
        trajectory.reward = None if score.value is None else (each.reward_given or 0.0) + score.value
        for step in trajectory.steps:
            step.reward = None if trajectory.reward is None else 0.0
        if trajectory.steps:
            trajectory.steps[-1].reward = trajectory.reward
        trajectory.info |= _told(score)
        if score.value is not None:
            trajectory.info.pop(REWARD_ERROR, None)
    rewards = [each.trajectory.reward or 0.0 for each in played.trajectories]
    played.episode.is_correct = max(rewards, default=0.0) > 0 if score.correct is None else score.correct
    played.episode.metrics |= score.metrics


def _attempt_of(episode: Episode) -> Rollout | None:
    steps = [step for trajectory in episode.trajectories for step in trajectory.steps]
    if not steps:
        return None
    kept = next((step.info[ATTEMPT] for step in steps if ATTEMPT in step.info), None)
    if kept is None:
        raise ConfigError(
            "no-stored-rollout",
            f"Rollout {episode.id!r} was stored without its conversation, which rewards need.",
            "Use episodes from `rllm gateway episodes` or `rllm eval --save`, which store it.",
        )
    return rollout_from_json(kept)


def _told(score: Score) -> dict[str, object]:
    told: dict[str, object] = {REWARD_COMPONENTS: dict(score.components)}
    if score.extracted is not None:
        told[EXTRACTED] = score.extracted
    if score.value is None:
        told[REWARD_ERROR] = score.feedback
    return told
