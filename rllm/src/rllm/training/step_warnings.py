"""Problems in training steps. Warn once about those that do not stop the run. Metrics count every occurrence.

A run stops if the model generates no response in the first step.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rllm_core.contracts.observer import Observer
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import TerminationReason
from rllm_core.errors import RolloutError, did_you_mean
from rllm_core.schema.run_config import RunConfig

PRECOMPUTED = "rllm.algorithm.use_precomputed_advantage"


class StepWarnings(Observer):
    """Observer that checks every finished step, and warns once about each kind of problem."""

    def __init__(self, config: RunConfig, warn: Callable[[str], None]) -> None:
        self._algorithm = config.rllm.algorithm
        self._warn = warn
        self._left = [self._warn_of_failures, self._warn_of_unseen_roles, self._warn_of_precomputed_advantages]

    def on_batch_end(self, step: TrainStep) -> None:
        self._left = [look for look in self._left if not look(step)]

    def _warn_of_failures(self, step: TrainStep) -> bool:
        """Warn about a failed rollout, and return True if there was one."""
        failed = [episode for episode in step.generated if episode.error]
        if failed:
            self._warn(
                f"rollout {failed[0].id!r} ended with {failed[0].termination_reason.value}: {failed[0].error}; "
                f"{len(failed)} of {len(step.generated)} rollouts of this step failed, see batch/ended_* in the metrics"
            )
        return bool(failed)

    def _warn_of_unseen_roles(self, step: TrainStep) -> bool:
        """Warn about roles in `estimator_map` or `loss_map` that the first groups lack, such as misspelled names."""
        groups = step.offered_groups or step.trajectory_groups
        if not groups:
            return False
        roles = sorted({group.group_role for group in groups})
        maps = (("estimator_map", self._algorithm.estimator_map), ("loss_map", self._algorithm.loss_map))
        for key, mapping in maps:
            if unseen := [role for role in mapping if role not in roles]:
                meant = did_you_mean(unseen[0], roles)
                self._warn(
                    f"rllm.algorithm.{key} lists {', '.join(unseen)}, but the groups of this step have the roles "
                    f"{', '.join(roles)}" + (f". {meant}" if meant else "")
                )
        return True

    def _warn_of_precomputed_advantages(self, step: TrainStep) -> bool:
        """Warn if the workflow's advantages are not used, or if none exist although the run should use them."""
        if ignored := step.metrics.get("advantage/precomputed_ignored"):
            self._warn(
                f"{ignored:.0%} of the groups of this step have precomputed advantages, which are replaced by "
                f"estimates; {PRECOMPUTED}=true keeps them"
            )
            return True
        if step.metrics.get("advantage/precomputed") == 0:
            self._warn(
                f"{PRECOMPUTED} is true, and no group of this step has precomputed advantages: all are estimated"
            )
            return True
        return False


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


def require_responses(step: TrainStep) -> None:
    """Raise an error if no rollout of the first step has a response. Such a run would finish without training.

    Later steps are not checked, because their tasks depend on the random order.

    Raises:
        RolloutError: no rollout of the step has a response, and each ended because its prompt was too long.
    """
    too_long = TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED
    if step.generated and all(
        episode.termination_reason is too_long and not any(trajectory.steps for trajectory in episode.trajectories)
        for episode in step.generated
    ):
        raise RolloutError(
            "prompt-too-long",
            f"All {len(step.generated)} rollouts of the first step ended without a response: their first prompts are "
            "too long.",
            "Raise data.max_prompt_length or the backend's own limit, such as training.max_length. Otherwise remove "
            "these tasks.",
        )
