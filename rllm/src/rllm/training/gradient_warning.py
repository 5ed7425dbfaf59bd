"""Warn once if several steps give no gradient."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rllm_core.contracts.observer import Observer
from rllm_core.contracts.train_step import TrainStep

STEPS = 3
"""Number of successive steps without gradient. A single such step may be chance."""
PAGE = "docs/how-to/debug-learning.md"
WAITING = "waiting_for_more_groups"
"""Skip reason of a step whose groups are trained on later."""
CAUSES = {
    "everything_masked": "every rollout was masked, see batch/masked_* and batch/ended_*",
    "all_groups_rejected": "rejection dropped every group, see batch/solve_none and batch/solve_all",
    "no_rewards": "no rollout has a reward, see batch/missing_rewards",
    "no_greedy_rewards": "no greedy rollout has a reward, see batch/missing_rewards",
    "nothing_generated": "no rollout has a response, see batch/ended_*",
    "no_sampled_tokens": "no rollout has sampled tokens, see batch/ended_*",
}
"""Skip reason -> its text, with the metric that shows it."""
EQUAL = "all rollouts of each task have the same reward, see reward/*/std and advantage/*/fraction_zero"
SOLVED = "all rollouts have the same reward and are solved from the start, see batch/solve_all: check the reward"


class GradientWarning(Observer):
    """Observer for successive steps without gradient.

    Steps that solve most tasks count only if no step before them had a gradient, because a run that has learned its
    tasks also ends with equal rewards.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn: Callable[[str], None] | None = warn
        self._causes: list[str] = []
        """Causes of the last steps without gradient."""
        self._has_learned = False

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        self._has_learned = first_step > 0

    def on_batch_end(self, step: TrainStep) -> None:
        if step.skip_reason == WAITING:
            return
        cause = find_cause(step)
        if cause is None or (cause == SOLVED and self._has_learned):
            self._has_learned = True
            self._causes.clear()
            return
        self._causes.append(cause)
        if len(self._causes) >= STEPS:
            self._report()

    def on_train_end(self, global_step: int) -> None:
        """Warn about a short run without any gradient."""
        if self._causes and not self._has_learned:
            self._report()

    def _report(self) -> None:
        if self._warn is not None:
            number = len(self._causes)
            steps = "The step" if number == 1 else f"{number} successive steps"
            self._warn(f"{steps} had no gradient: {self._causes[-1]}. {PAGE} lists what to do")
        self._warn = None


def find_cause(step: TrainStep) -> str | None:
    """Return the reason why a step of rollouts has no gradient. None if it has one."""
    if step.skip_reason:
        return CAUSES.get(step.skip_reason, f"{step.skip_reason}, see batch/skipped_{step.skip_reason}")
    batch = step.batch
    if batch is None or batch.advantages is None or batch.targets is not None or batch.observation_weights is not None:
        return None
    if np.any(batch.advantages[batch.loss_mask]):
        return None
    return SOLVED if step.metrics.get("batch/solve_all", 0.0) >= 0.5 else EQUAL
