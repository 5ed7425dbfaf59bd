"""What goes wrong in a training step and lets the run go on is said once; metrics count it every time."""

from __future__ import annotations

from collections.abc import Callable

from rllm_core.contracts.observer import Observer
from rllm_core.contracts.train_step import TrainStep
from rllm_core.errors import did_you_mean
from rllm_core.schema.run_config import RunConfig

PRECOMPUTED = "rllm.algorithm.use_precomputed_advantage"


class StepWarnings(Observer):
    """Looks at every finished step until it has something to say, once for each kind of thing."""

    def __init__(self, config: RunConfig, warn: Callable[[str], None]) -> None:
        self._algorithm = config.rllm.algorithm
        self._warn = warn
        self._left = [self._failures, self._unseen_roles, self._precomputed]

    def on_batch_end(self, step: TrainStep) -> None:
        self._left = [look for look in self._left if not look(step)]

    def _failures(self, step: TrainStep) -> bool:
        """What went wrong with an attempt."""
        failed = [episode for episode in step.generated if episode.error]
        if failed:
            self._warn(
                f"attempt {failed[0].id!r} ended with {failed[0].termination_reason.value}: {failed[0].error}; "
                f"{len(failed)} of {len(step.generated)} attempts of this step did, see batch/ended_* in the metrics"
            )
        return bool(failed)

    def _unseen_roles(self, step: TrainStep) -> bool:
        """Roles with an estimator or loss of their own that the first groups do not have: a misspelt one never will."""
        groups = step.offered_groups or step.trajectory_groups
        if not groups:
            return False
        roles = sorted({group.group_role for group in groups})
        maps = (("estimator_map", self._algorithm.estimator_map), ("loss_map", self._algorithm.loss_map))
        for key, mapping in maps:
            if unseen := [role for role in mapping if role not in roles]:
                meant = did_you_mean(unseen[0], roles)
                self._warn(
                    f"rllm.algorithm.{key} names {', '.join(unseen)}; the groups of this step have the roles "
                    f"{', '.join(roles)}" + (f". {meant}" if meant else "")
                )
        return True

    def _precomputed(self, step: TrainStep) -> bool:
        """Advantages of the workflow that are not used, or none where they were asked for."""
        if ignored := step.metrics.get("advantage/precomputed_ignored"):
            self._warn(
                f"{ignored:.0%} of the groups of this step bring advantages of their own, which are estimated anew; "
                f"{PRECOMPUTED}=true keeps them"
            )
            return True
        if step.metrics.get("advantage/precomputed") == 0:
            self._warn(
                f"{PRECOMPUTED} is true, and no group of this step brings advantages of its own: all are estimated"
            )
            return True
        return False
