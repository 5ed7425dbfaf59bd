"""Means over tasks with intervals. Attempts at one task are not independent, so the task is the unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rllm_evals.student import Z, student_quantile

FEWEST_TASKS = 2
"""One task says nothing about others."""


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks."""

    value: float
    low: float | None
    """Lower end of the 95 % interval; None where there are too few tasks."""
    high: float | None


def pass_at_k(attempts: int, correct: int, k: int) -> float:
    """Chance that one of `k` attempts drawn without replacement is correct (Chen et al. 2021, arXiv:2107.03374, eq. 1).

    The product form does not overflow.

    Raises:
        ValueError: `k` is more than there are attempts.
    """
    if k > attempts:
        raise ValueError(f"pass@{k} of {attempts} attempts")
    wrong = attempts - correct
    if wrong < k:
        return 1.0
    return 1.0 - float(np.prod(1.0 - k / np.arange(wrong + 1, attempts + 1)))


def ks_of(attempts: int) -> list[int]:
    """1, the powers of two below `attempts`, and `attempts`."""
    powers = [2**power for power in range(attempts.bit_length()) if 2**power < attempts]
    return sorted({1, *powers, attempts})


def share(values: Sequence[float], attempts: int) -> Estimate:
    """The mean of values from 0 to 1, one per task, with Wilson's score interval on the effective sample size.

    The effective size is the number of independent attempts with the standard error clustered by task (Miller 2024,
    arXiv:2411.00640, section 2.2; Kish 1965), corrected for the few tasks that it is measured on (Korn and Graubard
    1998). It is at least the number of tasks and at most `attempts`. With one attempt per task it is Wilson's interval.

    Args:
        values: such as the share of correct attempts, by task.
        attempts: how many attempts there are at all tasks together.
    """
    of_tasks = np.asarray(values, np.float64)
    mean, tasks = float(of_tasks.mean()), len(of_tasks)
    if tasks < FEWEST_TASKS:
        return Estimate(mean, None, None)
    return Estimate(mean, *wilson(mean, _effective_size(of_tasks, attempts)))


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean of any numbers, one per task, with Student's interval on the standard error clustered by task."""
    of_tasks = np.asarray(values, np.float64)
    mean = float(of_tasks.mean())
    if len(of_tasks) < FEWEST_TASKS:
        return Estimate(mean, None, None)
    half = student_quantile(len(of_tasks) - 1) * standard_error(of_tasks)
    return Estimate(mean, mean - half, mean + half)


def wilson(share: float, size: float) -> tuple[float, float]:
    """Wilson's 95 % score interval (Wilson 1927) of a share that was seen in `size` draws, which may be a fraction."""
    shrunk = Z**2 / size
    centre = (share + shrunk / 2) / (1 + shrunk)
    half = math.sqrt(shrunk * (share * (1 - share) + shrunk / 4)) / (1 + shrunk)
    return max(0.0, centre - half), min(1.0, centre + half)


def standard_error(of_tasks: NDArray[np.float64]) -> float:
    """The standard error of the mean of (n,) values of tasks, n > 1."""
    return float(of_tasks.std(ddof=1)) / math.sqrt(len(of_tasks))


def _effective_size(of_tasks: NDArray[np.float64], attempts: int) -> float:
    tasks, mean = len(of_tasks), float(of_tasks.mean())
    error = standard_error(of_tasks)
    spread = mean * (1 - mean)
    if spread <= 0:
        return float(tasks)  # every attempt ended alike: how alike attempts at one task are cannot be told
    size = min(spread / error**2, attempts) if error else float(attempts)
    few = (student_quantile(attempts - 1) / student_quantile(tasks - 1)) ** 2
    return float(min(max(size * few, tasks), attempts))
