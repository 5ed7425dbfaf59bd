"""`RunData`: the metrics and rollouts of a run, in the same form for each framework that wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Source = Literal["rllm", "trl", "verl", "prime-rl"]
START = 0.02
"""Share of the steps at the start of a run, in which training has hardly changed the policy."""


class Column(StrEnum):
    """A metric of a step, or a property of a rollout. The value describes it for people."""

    REWARD = "mean reward"
    REWARD_STD = "spread of rewards"
    SOLVED = "share of solved rollouts"
    VALIDATION = "validation"
    ZERO_ADVANTAGE = "share of advantages that are 0"
    LOSS = "loss"
    ENTROPY = "entropy"
    KL_REFERENCE = "KL divergence from the reference model"
    KL_STEP = "KL divergence of an update"
    CLIPPED = "share of clipped tokens"
    GRADIENT = "gradient norm"
    LEARNING_RATE = "learning rate"
    LENGTH = "response length"
    TRUNCATED = "share of truncated responses"
    MISMATCH = "difference of log-probs between sampler and trainer"
    STALENESS = "age of tokens in updates"
    EFFECTIVE_SAMPLES = "effective sample size"
    EXPLAINED_VARIANCE = "explained variance of the critic"
    PREFIX_BREAKS = "prefix breaks per rollout"
    MISSING_REWARDS = "missing rewards"
    FAILED = "share of failed rollouts"
    OBSERVED_TASKS = "share of tasks that were drawn"
    STEP_SECONDS = "seconds of a step"
    TOKENS_PER_SECOND = "tokens per second"
    STAGE_SECONDS = "seconds of each stage"
    ROLLOUT_REWARD = "reward of each rollout"
    ROLLOUT_SOLVED = "outcome of each rollout"
    ROLLOUT_LENGTH = "length of each rollout"
    ROLLOUT_TRUNCATED = "truncation of each rollout"
    ROLLOUT_TEXT = "text of each rollout"
    ROLLOUT_COMPONENTS = "several rewards of each rollout"
    ROLLOUT_DISAGREEMENT = "agreement of rewards about each rollout"
    ROLLOUT_OUTCOME = "use of each rollout in the update"
    TOKEN_KL = "KL divergence of each token"


@dataclass(frozen=True, eq=False)
class Series:
    """A metric over steps. Steps without a value are not part of it."""

    steps: NDArray[np.int64]
    values: Floats
    """(n,) values, which are finite."""

    def __len__(self) -> int:
        return len(self.values)

    def part(self, start: float, end: float) -> Series:
        """Return the points from one share of the series to the next, such as ``part(0.5, 1)`` for the second half."""
        first = int(start * len(self))
        chosen = slice(first, max(round(end * len(self)), first + 1))
        return Series(self.steps[chosen], self.values[chosen])

    def where(self, mask: NDArray[np.bool_]) -> Series:
        """Return the points at which `mask` is True."""
        return Series(self.steps[mask], self.values[mask])

    @property
    def median(self) -> float:
        """The median. NaN without a point."""
        return float(np.median(self.values)) if len(self) else float("nan")

    @property
    def span(self) -> tuple[int, int]:
        """First and last step."""
        return max(0, int(self.steps[0])), int(self.steps[-1])

    def compare_ends(self, share: float = 1 / 3) -> Change:
        """Compare the means of the first and the last share of the points. They are NaN without a point."""
        if not len(self):
            return Change(float("nan"), float("nan"), 0.0, 0.0, 0.0)
        before, after = self.part(0, share).values, self.part(1 - share, 1).values
        # Differences of successive values do not contain the trend.
        noise = float(np.std(np.diff(self.values)) / np.sqrt(2)) if len(self) > 2 else 0.0
        error = noise * np.sqrt(1 / len(before) + 1 / len(after))
        difference = float(after.mean() - before.mean())
        z = float(difference / error) if error > 0 else float(np.sign(difference)) * 1e9
        return Change(float(before.mean()), float(after.mean()), z, float(error), noise)


@dataclass(frozen=True)
class Change:
    """The difference between two parts of a series."""

    before: float
    after: float
    z: float
    """The difference in standard errors. Successive steps are correlated, so use a high limit."""
    error: float
    """Standard error of the difference."""
    noise: float
    """Standard deviation of one value around the trend."""

    LIMIT = 4.0

    @property
    def gain(self) -> float:
        return self.after - self.before

    @property
    def is_rise(self) -> bool:
        return self.z > self.LIMIT

    @property
    def is_fall(self) -> bool:
        return self.z < -self.LIMIT


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollouts:
    """Rollouts of a run, one row each. NaN or an empty text means that a value is not recorded."""

    uid: NDArray[np.object_]
    """Name of the rollout for the viewer's commands. It is empty for other frameworks."""
    step: NDArray[np.int64]
    task: NDArray[np.object_]
    group: NDArray[np.int64]
    """Number of the group: rollouts whose rewards are compared."""
    reward: Floats
    solved: Floats
    length: Floats
    """Number of sampled tokens, or of characters if only the text is recorded."""
    truncated: Floats
    text: NDArray[np.object_]
    """Sampled text. None if it is not recorded."""
    outcome: NDArray[np.object_]
    """``trained``, or the rule that removed the rollout. None if it is not recorded."""
    disagreement: Floats
    """1 if a reward accepts the response and a different reward reports that it is wrong."""
    components: Mapping[str, Floats]
    """Each reward by name, without its weight if that is recorded."""

    def __len__(self) -> int:
        return len(self.step)

    def select(self, mask: NDArray[np.bool_]) -> Rollouts:
        """Return the rows at which `mask` is True."""
        arrays = {name: value[mask] for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return replace(self, **arrays, components={name: each[mask] for name, each in self.components.items()})

    def between(self, start: float, end: float) -> Rollouts:
        """Return the rollouts from one share of the recorded steps to the next."""
        steps = np.unique(self.step)
        chosen = steps[int(start * len(steps)) : max(round(end * len(steps)), 1)]
        return self.select(np.isin(self.step, chosen))

    @cached_property
    def groups(self) -> Groups:
        """The groups, in the order of their numbers."""
        numbers, first, index, size = np.unique(self.group, return_index=True, return_inverse=True, return_counts=True)
        low, high = np.full(len(numbers), np.inf), np.full(len(numbers), -np.inf)
        np.minimum.at(low, index, np.where(np.isnan(self.reward), np.inf, self.reward))
        np.maximum.at(high, index, np.where(np.isnan(self.reward), -np.inf, self.reward))
        solved = np.bincount(index, self.solved) / size
        return Groups(
            index=index, step=self.step[first], task=self.task[first], size=size, low=low, high=high, solved=solved
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Groups:
    """Groups of rollouts, one row each."""

    index: NDArray[np.int64]
    """(rollouts,) row of each rollout's group."""
    step: NDArray[np.int64]
    task: NDArray[np.object_]
    size: NDArray[np.int64]
    low: Floats
    """Smallest reward of the group's rollouts."""
    high: Floats
    """Largest reward of the group's rollouts."""
    solved: Floats
    """Share of solved rollouts. NaN if it is not recorded."""

    @property
    def is_equal(self) -> NDArray[np.bool_]:
        """True if all rewards of a group are equal, so that it has no advantages."""
        return np.asarray(self.low == self.high)


@dataclass(frozen=True, kw_only=True, eq=False)
class RunData:
    """The metrics and rollouts of a run."""

    name: str
    """Path of the run in a form that can be typed."""
    source: Source
    steps: NDArray[np.int64]
    metrics: Mapping[Column, Floats]
    """(steps,) values of each metric. NaN at steps without a value, and unchanged infinite values."""
    names: Mapping[Column, str] = field(default_factory=dict)
    """Name of each metric in the run's own files."""
    not_finite: Mapping[Column, tuple[int, ...]] = field(default_factory=dict)
    """Steps at which a metric was logged as NaN or infinite."""
    stages: Mapping[str, Floats] = field(default_factory=dict)
    """(steps,) seconds of each stage."""
    rollouts: Rollouts | None = None
    token_kl: Mapping[int, float] = field(default_factory=dict)
    """Mean KL divergence from the reference model by position in the response."""
    expected_tasks: int | None = None
    """Number of tasks that an epoch draws. None if the run has no epochs, or no whole epoch yet."""
    updates_skip_zero_advantages: bool = False
    """True if the metrics of updates are only about tokens with an advantage."""

    @property
    def step_count(self) -> int:
        """Number of steps. A validation before the first step is not a step."""
        return int((self.steps >= 0).sum())

    def series(self, column: Column) -> Series:
        """Return the finite values of a metric."""
        values = self.metrics.get(column, np.full(len(self.steps), np.nan))
        mask = np.isfinite(values)
        return Series(self.steps[mask], values[mask])

    @property
    def all_rollouts(self) -> Rollouts:
        """The rollouts, for rules that need a column of rollouts."""
        if self.rollouts is None:
            raise ValueError("the run has no rollouts")
        return self.rollouts

    def has(self, column: Column) -> bool:
        """True if the run has values of this column."""
        if column is Column.STAGE_SECONDS:
            return bool(self.stages)
        if column is Column.TOKEN_KL:
            return bool(self.token_kl)
        if not column.name.startswith("ROLLOUT_"):
            return column in self.metrics and bool(np.isfinite(self.metrics[column]).any() or column in self.not_finite)
        rows = self.rollouts
        if rows is None or not len(rows):
            return False
        if column is Column.ROLLOUT_COMPONENTS:
            return len(rows.components) > 1
        if column in (Column.ROLLOUT_TEXT, Column.ROLLOUT_OUTCOME):
            return any(each is not None for each in getattr(rows, column.name.removeprefix("ROLLOUT_").lower()))
        return bool(np.isfinite(getattr(rows, column.name.removeprefix("ROLLOUT_").lower())).any())

    def with_metrics_of_rollouts(self) -> RunData:
        """Return the run with step metrics that its log lacks, computed from its rollouts."""
        rows = self.rollouts
        if rows is None or not len(rows):
            return self
        metrics = dict(self.metrics)
        computed = {
            Column.REWARD: rows.reward,
            Column.SOLVED: rows.solved,
            Column.LENGTH: rows.length,
            Column.TRUNCATED: rows.truncated,
            Column.ZERO_ADVANTAGE: rows.groups.is_equal[rows.groups.index].astype(float),
        }
        for column, values in computed.items():
            if column not in metrics and np.isfinite(values).any():
                known = rows.select(np.isfinite(values)), values[np.isfinite(values)]
                means = {step: known[1][known[0].step == step].mean() for step in np.unique(known[0].step)}
                metrics[column] = np.array([means.get(step, np.nan) for step in self.steps])
        return replace(self, metrics=metrics)
