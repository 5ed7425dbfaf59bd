"""Two saved evaluations, paired by task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rllm.evaluation.metadata import Environment, Metadata
from rllm.evaluation.metrics import Outcome, build_outcome, known_rewards
from rllm.evaluation.saving import read_rollouts, require_evaluation
from rllm.evaluation.statistics import Estimate, drop_residues, estimate_difference, estimate_mean, sign_flip_p
from rllm_core.errors import ConfigError

SHOWN = 3
"""Tasks that an error names."""


@dataclass(frozen=True)
class Difference:
    """The difference of one metric between two evaluations."""

    first: float
    second: float
    difference: Estimate
    """Second less first, over tasks."""
    p: float
    """Two-sided, of the sign-flip test over tasks."""


@dataclass(frozen=True)
class Comparison:
    """The comparison of two evaluations on one environment."""

    environment: str
    tasks: int
    passed: Difference
    """pass@1."""
    reward: Difference | None
    """None if a task has no reward in one of the two."""


@dataclass(frozen=True)
class Comparisons:
    """All environments that two evaluations have in common."""

    models: tuple[Metadata, Metadata]
    environments: Sequence[Comparison]
    only: Mapping[Path, Sequence[str]]
    """The environments that only one of the directories contains."""


@dataclass(frozen=True)
class _Side:
    """One evaluation of an environment, by task."""

    outcomes: Mapping[str, Sequence[Outcome]]
    digests: Mapping[str, str]


def compare(first: Path, second: Path) -> Comparisons:
    """Compare the environments that two directories have in common.

    Raises:
        ConfigError: a directory contains no evaluation, they share no environment, or an environment's tasks differ.
        RllmError: a file is damaged.
    """
    one, other = require_evaluation(first), require_evaluation(second)
    shared = [name for name in one.environments if name in other.environments]
    if not shared:
        raise ConfigError(
            "different-evaluations",
            f"{first} has only {', '.join(one.environments)}, and {second} has only {', '.join(other.environments)}.",
            "Evaluate both models on the same environments.",
        )
    only = {
        directory: sorted(metadata.environments.keys() - shared)
        for directory, metadata in ((first, one), (second, other))
    }
    environments = [
        _compare(name, (first, one.environments[name]), (second, other.environments[name])) for name in shared
    ]
    return Comparisons(models=(one, other), environments=environments, only=only)


def _compare(name: str, first: tuple[Path, Environment], second: tuple[Path, Environment]) -> Comparison:
    sides = _side(*first), _side(*second)
    problems = list(_different_tasks(sides, first[0], second[0]))
    if problems:
        raise ConfigError(
            "different-evaluations",
            f"{first[0]} and {second[0]} have different tasks of {name}: {'; '.join(problems)}.",
            "Only the same tasks can be paired: finish both evaluations, with the same data.",
        )
    tasks = sorted(sides[0].outcomes)  # the p-value depends on their order, which must be the same from both sides
    pairs = [(sides[0].outcomes[task], sides[1].outcomes[task]) for task in tasks]
    return Comparison(name, len(tasks), _passes(pairs), _rewards(pairs))


def _side(directory: Path, environment: Environment) -> _Side:
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    digests: dict[str, str] = {}
    for saved in read_rollouts(directory, environment):
        outcomes[saved.episode.task_id].append(build_outcome(saved.episode))
        digests[saved.episode.task_id] = saved.task
    return _Side(outcomes, digests)


def _different_tasks(sides: tuple[_Side, _Side], first: Path, second: Path) -> Iterator[str]:
    one, other = (side.digests for side in sides)
    for here, there, directory in ((one, other, first), (other, one, second)):
        if unmatched := sorted(here.keys() - there.keys()):
            yield f"{_list_tasks(unmatched)} only in {directory}"
    if changed := sorted(task for task in one.keys() & other.keys() if one[task] != other[task]):
        yield f"{_list_tasks(changed)} with other content"
    if not one and not other:
        yield "neither has any"


def _list_tasks(tasks: Sequence[str]) -> str:
    more = f" and {len(tasks) - SHOWN} more" if len(tasks) > SHOWN else ""
    return f"{', '.join(map(repr, tasks[:SHOWN]))}{more}"


def _passes(pairs: Sequence[tuple[Sequence[Outcome], Sequence[Outcome]]]) -> Difference:
    shares = [[float(np.mean([outcome.correct for outcome in side])) for side in pair] for pair in pairs]
    return _difference(shares, estimate_difference)


def _rewards(pairs: Sequence[tuple[Sequence[Outcome], Sequence[Outcome]]]) -> Difference | None:
    rewards = [[known_rewards(side) for side in pair] for pair in pairs]
    if not all(side for pair in rewards for side in pair):
        return None
    bounded = all(0 <= reward <= 1 for pair in rewards for side in pair for reward in side)
    estimate = estimate_difference if bounded else estimate_mean
    return _difference([[float(np.mean(side)) for side in pair] for pair in rewards], estimate)


def _difference(of_tasks: Sequence[Sequence[float]], estimate: Callable[[Sequence[float]], Estimate]) -> Difference:
    pairs = np.array(of_tasks, np.float64)
    differences = drop_residues(pairs[:, 1] - pairs[:, 0], float(np.abs(pairs).max())).tolist()
    first, second = pairs.mean(0).tolist()
    return Difference(first, second, estimate(differences), sign_flip_p(differences))
