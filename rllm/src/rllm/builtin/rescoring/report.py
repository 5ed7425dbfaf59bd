"""The report of `rllm rescore --estimator`: a table of all estimators, and the largest differences of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from rllm.builtin.rescoring.estimators import RescoredGroups, ScoredGroup, label
from rllm_record.terminal import print_table

LARGEST = 5
HEADINGS = ("role", "estimator", "no signal", "mean |A|", "signs changed", "flipped", "correlation")


def print_report(result: RescoredGroups) -> None:
    """Print a row for each role and estimator, and the trajectories whose advantages differ most from the reference."""
    roles = dict.fromkeys(group.role for group in result.groups)
    groups = {role: [group for group in result.groups if group.role == role] for role in roles}
    print_table(HEADINGS, [row for role in roles for row in _rows(role, result, groups[role])], bold=1)
    for role in roles:
        for index, estimators in enumerate(result.estimators[1:], 1):
            names = [label(each.get(role)) for each in (result.estimators[0], estimators)]
            rows = _differences(groups[role], index)
            if rows:
                click.echo(f"\nRole {role}, {names[1]} instead of {names[0]}:")
                print_table(("largest differences: group", "trajectory", "reward", *names), rows)


def as_json(result: RescoredGroups) -> list[dict[str, Any]]:
    """Return each group with the advantages of its trajectories under each estimator."""
    return [
        {
            "step": group.step,
            "group": group.group_id,
            "role": group.role,
            "trajectories": group.trajectories,
            "rewards": group.rewards.tolist(),
            "advantages": [
                {"estimator": label(estimators.get(group.role)), "values": values.tolist()}
                for estimators, values in zip(result.estimators, group.advantages, strict=True)
            ],
        }
        for group in result.groups
    ]


def _rows(role: str, result: RescoredGroups, groups: Sequence[ScoredGroup]) -> Iterator[tuple[str, ...]]:
    advantages = np.concatenate([group.advantages for group in groups], axis=1)
    for index, estimators in enumerate(result.estimators):
        silent = sum(not group.signal[index] for group in groups)
        compared = _compare(advantages[0], advantages[index]) if index else ("", "", "reference")
        mean = f"{np.abs(advantages[index]).mean():.3f}"
        yield (role, label(estimators.get(role)), f"{silent} of {len(groups)}", mean, *compared)


def _compare(reference: NDArray[np.float64], other: NDArray[np.float64]) -> tuple[str, str, str]:
    """Return the shares of changed and of flipped signs, and Pearson's correlation."""
    changed, flipped = np.sign(reference) != np.sign(other), reference * other < 0
    constant = np.ptp(reference) == 0 or np.ptp(other) == 0
    correlation = "none" if constant else f"{np.corrcoef(reference, other)[0, 1]:+.3f}"
    return f"{100 * changed.mean():.1f}%", f"{100 * flipped.mean():.1f}%", correlation


def _differences(groups: Sequence[ScoredGroup], index: int) -> list[tuple[str, ...]]:
    """Return the largest differences, each from a different group."""
    found: list[tuple[float, tuple[str, ...]]] = []
    for group in groups:
        reference, other = group.advantages[0], group.advantages[index]
        at = int(np.abs(other - reference).argmax())
        if other[at] != reference[at]:
            cells = f"{group.rewards[at]:.3f}", f"{reference[at]:+.3f}", f"{other[at]:+.3f}"
            found.append((abs(other[at] - reference[at]), (group.name, group.trajectories[at], *cells)))
    found.sort(key=lambda each: -each[0])
    return [cells for _, cells in found[:LARGEST]]
