"""Means over tasks with intervals, and tests. Rollouts of one task are not independent, so the task is the unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Z = 1.959963984540054
"""The 97.5 % point of the normal distribution."""
FEWEST_TASKS = 2
"""Minimum number of tasks for an interval, because one task does not describe others."""
Interval = Literal["wilson", "student", "tango"]
"""Type of the interval; see `share`, `estimate_mean` and `estimate_difference`."""


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks."""

    value: float
    low: float | None
    """Lower end of the 95 % interval. None if it cannot be computed."""
    high: float | None
    interval: Interval | None = None
    """Type of the interval. None if it has no interval."""


def choose_ks(rollouts: int) -> list[int]:
    """Return 1, the powers of two below `rollouts`, and `rollouts`."""
    powers = [2**power for power in range(rollouts.bit_length()) if 2**power < rollouts]
    return sorted({1, *powers, rollouts})


def share(values: Sequence[float], rollouts: int) -> Estimate:
    """Return the mean of values from 0 to 1, one per task, with Wilson's interval for the effective sample size.

    The effective size is the number of independent rollouts with the standard error clustered by task (Miller 2024,
    arXiv:2411.00640, section 2.2; Kish 1965), corrected for the few tasks that it is measured on (Korn and Graubard
    1998). It is at least the number of tasks and at most `rollouts`. With one rollout per task it is Wilson's interval.

    Args:
        values: one value per task, such as the share of correct rollouts.
        rollouts: number of rollouts of all tasks together.
    """
    of_tasks = np.asarray(values, np.float64)
    mean, tasks = float(of_tasks.mean()), len(of_tasks)
    if tasks < FEWEST_TASKS:
        return Estimate(mean, None, None)
    return Estimate(mean, *wilson(mean, _effective_size(of_tasks, rollouts, rollouts)), "wilson")


def mean_reward(rewards: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean of rewards, given by task and rollout.

    Rewards from 0 to 1 have the interval of `share`. Their variance is at most the variance of passes with the same
    mean m, which is m (1 - m). So the effective sample size is at least that for passes. The interval has a width
    even if all rollouts have the same reward, such as 0. Other rewards have the interval of `estimate_mean`.
    """
    of_tasks = np.array([np.mean(of_task) for of_task in rewards], np.float64)
    all_of_them = np.concatenate([np.asarray(of_task, np.float64) for of_task in rewards])
    low, high = float(all_of_them.min()), float(all_of_them.max())
    if low < 0 or high > 1:
        return estimate_mean(drop_residues(of_tasks, float(np.abs(of_tasks).max())).tolist())
    mean, tasks, rollouts = float(of_tasks.mean()), len(of_tasks), len(all_of_them)
    if tasks < FEWEST_TASKS:
        return Estimate(mean, None, None)
    if low == high:
        return Estimate(low, *wilson(low, tasks), "wilson")
    # As many passes as vary as little as these rewards would if rollouts of one task were not alike.
    most = rollouts * mean * (1 - mean) / float(all_of_them.var())
    return Estimate(mean, *wilson(mean, _effective_size(of_tasks, rollouts, max(most, rollouts))), "wilson")


def estimate_mean(values: Sequence[float]) -> Estimate:
    """Return the mean of any numbers, one per task, with Student's interval for the standard error clustered by task.

    If all numbers are equal, the result has no interval, because their spread is not known.
    """
    of_tasks = np.asarray(values, np.float64)
    mean = float(of_tasks.mean())
    if len(of_tasks) < FEWEST_TASKS or of_tasks.min() == of_tasks.max():
        return Estimate(mean, None, None)
    half = _student_quantile(len(of_tasks) - 1) * standard_error(of_tasks)
    return Estimate(mean, mean - half, mean + half, "student")


def estimate_difference(differences: Sequence[float]) -> Estimate:
    """Return the mean difference of two metrics from 0 to 1, paired by task.

    The result is `estimate_mean` if any task differs. Otherwise it is Tango's score interval for paired shares (Tango
    1998, Statistics in Medicine 17, 891 - 908) without a discordant pair: z^2 / (n + z^2) to both sides for n tasks.
    """
    tasks = len(differences)
    if tasks < FEWEST_TASKS or any(differences):
        return estimate_mean(differences)
    half = Z**2 / (tasks + Z**2)
    return Estimate(0.0, -half, half, "tango")


def drop_residues(values: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """Return means, or differences of means, without their rounding errors, so that equal values compare equal.

    They become multiples of a power of two near 1e-13 times `scale`, the largest magnitude of the means.
    """
    step = math.ldexp(1.0, math.frexp(scale)[1] - 44)
    return np.round(values / step) * step


def wilson(share: float, size: float) -> tuple[float, float]:
    """Return Wilson's 95 % score interval (Wilson 1927) of a share in `size` draws. `size` may be a fraction."""
    shrunk = Z**2 / size
    centre = (share + shrunk / 2) / (1 + shrunk)
    half = math.sqrt(shrunk * (share * (1 - share) + shrunk / 4)) / (1 + shrunk)
    return max(0.0, centre - half), min(1.0, centre + half)


def standard_error(of_tasks: NDArray[np.float64]) -> float:
    """Return the standard error of the mean of (n,) values of tasks, n > 1."""
    return float(of_tasks.std(ddof=1)) / math.sqrt(len(of_tasks))


def _effective_size(of_tasks: NDArray[np.float64], rollouts: int, most: float) -> float:
    """Return the number of independent rollouts with the same variance of the mean.

    It is at least the number of tasks and at most `most`.
    """
    tasks, mean = len(of_tasks), float(of_tasks.mean())
    error = standard_error(of_tasks)
    spread = mean * (1 - mean)
    if spread <= 0:
        return float(tasks)  # all values are equal, so the correlation within a task is not known
    size = min(spread / error**2, most) if error else most
    few = (_student_quantile(rollouts - 1) / _student_quantile(tasks - 1)) ** 2
    return float(min(max(size * few, tasks), most))


def _student_quantile(freedom: int) -> float:
    """Return the 97.5 % point of Student's t distribution."""
    return float(stdtrit(freedom, 0.975))


DRAWS = 100_000
TOGETHER = 2_000_000
"""Signs that are drawn at a time: 16 MB."""
SLACK = 1e-9
"""Tolerance relative to the sum of the magnitudes, because sums that differ only by rounding must be ties."""


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of numbers, one per task, over `DRAWS` random signs with a fixed seed.

    The observed signs count as one more draw, so the value is never 0 (Phipson and Smyth 2010).
    """
    values = np.asarray([each for each in differences if each], np.float64)
    seen = abs(float(values.sum())) - SLACK * float(np.abs(values).sum())
    generator = np.random.default_rng(0)
    at_a_time = max(1, TOGETHER // max(1, len(values)))
    beyond, left = 0, DRAWS
    while left:
        draws = min(at_a_time, left)
        beyond += int((np.abs(_signs(generator, draws, len(values)) @ values) >= seen).sum())
        left -= draws
    return (beyond + 1) / (DRAWS + 1)


def _signs(generator: np.random.Generator, draws: int, tasks: int) -> NDArray[np.float64]:
    return generator.integers(0, 2, (draws, tasks)).astype(np.float64) * 2 - 1
