"""Saved attempts under other rewards. Nothing is played."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from rllm.evaluation.members import MemberFile
from rllm.evaluation.metadata import Environment, Metadata, read_reward_sources, write_metadata
from rllm.evaluation.outcome import Outcome, build_outcome
from rllm.evaluation.saved_rollout import SavedRollout, SavedScore, rollout_to_line
from rllm.evaluation.saving import locked, read_rollouts, require_saved
from rllm_core.contracts.reward import Score
from rllm_core.errors import ConfigError
from rllm_core.rollout.calls import call
from rllm_core.rollout.scoring import Scorer, WeightedReward

TOGETHER = 256
"""Attempts that are scored at a time."""
OF_REWARDS = "reward."
"""How figures of rewards begin; see `Scorer`."""


@dataclass
class Rescored:
    """One environment, before and after."""

    environment: str
    before: list[Outcome] = field(default_factory=list)
    after: list[Outcome] = field(default_factory=list)


async def rescore(directory: Path, rewards: Sequence[WeightedReward], save: Path | None = None) -> list[Rescored]:
    """Score every saved rollout again. The environment's own reward is unchanged.

    A rollout that was never scored, because it has no response, is unchanged. `is_correct` is unchanged too if the new
    rewards do not report it and the environment gives a reward. A reward above 0 is correct there.

    Args:
        directory: a saved evaluation.
        rewards: the rewards that replace the evaluation's rewards.
        save: a folder for the result, which is a saved evaluation too. None: nothing is written.

    Raises:
        ConfigError: there is no evaluation, its rollouts were not scored by ``rllm.reward``, or `save` is not empty.
        RllmError: a file is damaged.
    """
    metadata = require_saved(directory)
    if save is None:
        return [await _rescore(directory, name, each, rewards, None) for name, each in metadata.environments.items()]
    with locked(save):
        if (save / "episodes").exists():
            raise ConfigError(
                "directory-in-use", f"{save} contains an evaluation already.", "Choose another folder with --save."
            )
        (save / "episodes").mkdir()
        results = [await _rescore(directory, name, each, rewards, save) for name, each in metadata.environments.items()]
        write_metadata(save, _with_rewards(metadata, rewards))
        return results


async def _rescore(
    directory: Path, name: str, environment: Environment, rewards: Sequence[WeightedReward], save: Path | None
) -> Rescored:
    _require_scored(directory, name, environment)
    # Use a thread, because a reward may start processes and Ctrl-C must work in the meantime.
    scorer, result = await call(Scorer, rewards, blocking=True), Rescored(name)
    file = None if save is None else MemberFile(save / environment.file)
    try:
        saved = read_rollouts(directory, environment)
        while chunk := list(islice(saved, TOGETHER)):
            result.before += [build_outcome(each.episode) for each in chunk]
            for anew in await asyncio.gather(*(_scored(each, scorer, environment.pays) for each in chunk)):
                result.after.append(build_outcome(anew.episode))
                if file is not None:
                    file.append(rollout_to_line(anew))
    finally:
        if file is not None:
            file.close()
    return result


def _require_scored(directory: Path, name: str, environment: Environment) -> None:
    counts = {len(saved.scores) for saved in read_rollouts(directory, environment)}
    if max(counts, default=0) > 1:
        raise ConfigError(
            "not-rescorable",
            f"Attempts at {name} have several rewarded replies, as with the workflow solver_judge.",
            "Only attempts with one rewarded reply can be scored again.",
        )
    if counts <= {0}:
        raise ConfigError(
            "not-rescorable",
            f"The attempts at {name} have the rewards of the environment, and none of `rllm.reward`.",
            "Evaluate once more with --reward NAME.",
        )


def _paid(saved: SavedRollout, pays: bool) -> float | None:
    """Return the environment's own reward for a rollout. None if the rollout has no reward."""
    if not pays:
        return 0.0
    reward, value = build_outcome(saved.episode).reward, saved.scores[0].value
    return None if reward is None or value is None else reward - value


async def _scored(saved: SavedRollout, scorer: Scorer, pays: bool) -> SavedRollout:
    if not saved.scores:
        return saved
    (before,) = saved.scores
    score = await scorer(before.rollout)
    _pay(saved, score, _paid(saved, pays))
    return SavedRollout(saved.episode, saved.task, (SavedScore(before.rollout, score.value, score.correct),))


def _pay(saved: SavedRollout, score: Score, paid: float | None) -> None:
    """Set a rollout's new reward. It is missing if the score or the environment's own reward is missing."""
    episode = saved.episode
    trajectory = episode.trajectories[0]
    total = None if score.value is None or paid is None else paid + score.value
    trajectory.reward = trajectory.steps[-1].reward = total
    if score.correct is not None:
        episode.is_correct = score.correct
    elif total is not None:
        episode.is_correct = total > 0
    others = {name: value for name, value in episode.metrics.items() if not name.startswith(OF_REWARDS)}
    episode.metrics = {**others, **score.metrics}


def _with_rewards(metadata: Metadata, rewards: Sequence[WeightedReward]) -> Metadata:
    """The same, with the rewards that attempts are scored by now."""
    chosen = [
        {"name": each.chosen.qualified_name, **each.chosen.params.model_dump(mode="json"), "weight": each.weight}
        for each in rewards
    ]
    environments = {}
    for name, each in metadata.environments.items():
        config = {**each.config, "rllm": {**each.config["rllm"], "reward": chosen}}
        environments[name] = replace(each, config=config, reward_sources=read_reward_sources(rewards))
    return replace(metadata, environments=environments)
