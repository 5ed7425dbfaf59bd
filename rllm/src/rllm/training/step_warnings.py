"""Warn once about problems in training steps that do not stop the run. Metrics count every occurrence."""

from __future__ import annotations

from collections.abc import Callable

from rllm_core.contracts.observer import Observer
from rllm_core.contracts.train_step import TrainStep
from rllm_core.errors import did_you_mean
from rllm_core.schema.run_config import RunConfig

PRECOMPUTED = "rllm.algorithm.use_precomputed_advantage"


class StepWarnings(Observer):
    """Observer that checks every finished step, and warns once about each kind of problem."""

    def __init__(self, config: RunConfig, warn: Callable[[str], None]) -> None:
        self._algorithm = config.rllm.algorithm
        self._warn = warn
        self._left = [self._failures, self._unseen_roles, self._precomputed]

    def on_batch_end(self, step: TrainStep) -> None:
        self._left = [look for look in self._left if not look(step)]

    def _failures(self, step: TrainStep) -> bool:
        """Warn about a failed rollout, and return True if there was one."""
        failed = [episode for episode in step.generated if episode.error]
        if failed:
            self._warn(
                f"rollout {failed[0].id!r} ended with {failed[0].termination_reason.value}: {failed[0].error}; "
                f"{len(failed)} of {len(step.generated)} rollouts of this step failed, see batch/ended_* in the metrics"
            )
        return bool(failed)

    def _unseen_roles(self, step: TrainStep) -> bool:
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

    def _precomputed(self, step: TrainStep) -> bool:
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
