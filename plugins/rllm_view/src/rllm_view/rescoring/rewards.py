"""`rllm rescore DIRECTORY --reward NAME`: a saved evaluation, or sessions of a gateway, under other rewards."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from rllm.cli import print_table
from rllm.config import import_modules, read_override
from rllm.evaluation.metrics import Metrics, compute_metrics
from rllm.evaluation.outcome import build_outcome
from rllm.evaluation.report import as_text
from rllm.evaluation.rescoring import Rescored, rescore
from rllm.evaluation.saved_rollout import rollout_from_json
from rllm.evaluation.saving import require_saved
from rllm.evaluation.stopping import run_command
from rllm_core.algorithms.columns import EXTRACTED, REWARD_COMPONENTS, REWARD_ERROR
from rllm_core.contracts.chosen import FAMILY
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.data.types import Episode
from rllm_core.errors import ConfigError
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_core.rollout.calls import call
from rllm_core.rollout.scoring import Scorer, WeightedReward
from rllm_record.steps import PlayedEpisode, StepFiles
from rllm_record.steps.files import read_episodes, sampler_of
from rllm_view.rescoring.source import step_files_in

HERE = "--reward"


def rescore_evaluation(
    folder: Path, words: Sequence[str], modules: Sequence[str], save: Path | None, as_json: bool
) -> None:
    """Score the attempts of a saved evaluation by other rewards, and print both.

    Raises:
        ConfigError: a reward is unknown, or see `rllm.evaluation.rescoring.rescore`.
    """
    rewards = rewards_of(words, _registry(folder, modules))
    print_results(run_command(rescore(folder, rewards, save)), as_json)


def print_results(results: Sequence[Rescored], as_json: bool) -> None:
    """Figures before and after."""
    if as_json:
        import json

        data = [{"environment": each.environment, **_as_json(each)} for each in results]
        click.echo(json.dumps({"schema_version": 1, "environments": data}, indent=1))
        return
    headings = ("environment", "attempts", "rewards", "pass@1", "reward", "missing", "correct otherwise")
    print_table(headings, [row for each in results for row in _rows(each)])


def rewards_of(words: Sequence[str], registry: Registry) -> list[WeightedReward]:
    """Return rewards from the command line: each is a name, ``FILE.py:FUNCTION``, or a mapping with options.

    Raises:
        ConfigError, PluginError: a name or an option is unknown.
    """
    return [_reward(_choice(word), registry) for word in words]


def _choice(word: str) -> Any:
    in_file = word.partition(FAMILY)[0].endswith(".py")
    return f"python:{word}" if in_file else read_override(f"reward={word}")[1]


def _reward(choice: Any, registry: Registry) -> WeightedReward:
    options = dict(choice) if isinstance(choice, dict) else {}
    weight = options.pop("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise ConfigError("bad-reward-weight", f"The weight of {HERE} is {weight!r}.", "Give a number, such as 0.5.")
    chosen = choose(registry, "reward", options or choice, HERE)
    if chosen.plugin.check is not None:
        chosen.plugin.check(chosen.params)
    return WeightedReward(chosen=chosen, weight=float(weight))


def _registry(folder: Path, modules: Sequence[str]) -> Registry:
    """The plugins that the evaluation had."""
    sections = [each.config["rllm"]["plugins"] for each in require_saved(folder).environments.values()]
    import_modules([*(name for section in sections for name in section["import_modules"]), *modules])
    return Registry.load(allow=sections[0]["allow"])


def _rows(result: Rescored) -> list[tuple[str, ...]]:
    pairs = zip(result.before, result.after, strict=True)
    changed = sum(before.correct != after.correct for before, after in pairs)
    return [
        (figures.name, str(figures.rollouts), name, *_cells(figures), last)
        for name, outcomes, last in (("stored", result.before, ""), ("now", result.after, str(changed)))
        for figures in compute_metrics(result.environment, outcomes)
    ]


def _cells(figures: Metrics) -> tuple[str, ...]:
    return as_text(figures.passes[1]), as_text(figures.reward), str(figures.missing_rewards)


def _as_json(result: Rescored) -> dict[str, Any]:
    sides = {"stored": result.before, "now": result.after}
    return {
        name: [asdict(each) for each in compute_metrics(result.environment, outcomes)]
        for name, outcomes in sides.items()
    }


ATTEMPT = "attempt"
"""Key of a step's info that `rllm gateway episodes` writes: what rewards look at."""


def rescore_sessions(
    folder: Path, words: Sequence[str], modules: Sequence[str], save: Path | None, as_json: bool
) -> None:
    """Score the rollouts again, and print metrics before and after.

    A reward from the agent's own program stays, and the score is added to it, as in a run.

    Args:
        folder: directory of the files of episodes.
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
    print_results([run_command(_rescored(folder, rewards, save))], as_json)


async def _rescored(folder: Path, rewards: Sequence[WeightedReward], save: Path | None) -> Rescored:
    # Use a thread, because a reward may start processes, and Ctrl-C must work meanwhile.
    scorer, result = await call(Scorer, rewards, blocking=True), Rescored(folder.name)
    for step, file in step_files_in(folder):
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
        trajectory.info |= _convert_score(score)
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


def _convert_score(score: Score) -> dict[str, object]:
    told: dict[str, object] = {REWARD_COMPONENTS: dict(score.components)}
    if score.extracted is not None:
        told[EXTRACTED] = score.extracted
    if score.value is None:
        told[REWARD_ERROR] = score.feedback
    return told
