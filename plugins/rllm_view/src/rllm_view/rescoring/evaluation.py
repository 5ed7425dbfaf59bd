"""`rllm rescore EVALUATION --reward NAME`: a saved evaluation under other rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from rllm.cli import print_table
from rllm.config import import_modules, read_override
from rllm.evaluation.metrics import Metrics, compute_metrics
from rllm.evaluation.report import as_text
from rllm.evaluation.rescoring import Rescored, rescore
from rllm.evaluation.saving import require_saved
from rllm.evaluation.stopping import run_command
from rllm_core.contracts.chosen import FAMILY
from rllm_core.errors import ConfigError
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_core.rollout.scoring import WeightedReward

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
