"""TrainStep: everything that flows through the stages of one training step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rllm_core.batch import TokenBatch
from rllm_core.types import Episode, Task, TrajectoryGroup


@dataclass(kw_only=True)
class TrainStep:
    """One step of the training loop. Stages fill it; observers and trackers read it."""

    global_step: int
    """Counted from 0 over the whole run."""
    epoch: int
    total_steps: int
    tasks: list[Task]
    is_training: bool = True
    weight_version: int = 0
    """Updates made so far; grows by one when this step updates the weights."""
    generated: list[Episode] = field(default_factory=list)
    """All episodes of the step, as they were played."""
    episodes: list[Episode] = field(default_factory=list)
    """Those of them that have not been masked."""
    trajectory_groups: list[TrajectoryGroup] = field(default_factory=list)
    batch: TokenBatch | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    timing_dict: dict[str, float] = field(default_factory=dict)
    """Seconds per stage."""
    skip_reason: str = ""
    """Why there is nothing to train on; set by `skip`."""
    extras: dict[str, Any] = field(default_factory=dict)
    """What stages of other packages leave for each other, under names of their own."""

    def skip(self, reason: str) -> None:
        """Nothing is left to train on: only stages that always run follow. `reason` is a metric of its own."""
        self.skip_reason = reason
        self.metrics[f"batch/skipped_{reason}"] = 1.0

    @property
    def filled_batch(self) -> TokenBatch:
        """The batch, for stages after `build_batch`."""
        if self.batch is None:
            raise RuntimeError("no stage has built a batch yet")
        return self.batch
