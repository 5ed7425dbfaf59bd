"""The properties that a resumed run must share with its earlier starts: the task order, and the weights in use."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rllm.runs.checkpoint import Checkpoint
from rllm_core.errors import CheckpointError


@dataclass(frozen=True)
class RunIdentity:
    """Properties stored in every checkpoint. With different ones, a resumed run would train on different tasks, or on
    tokens that are staler than allowed."""

    seed: int
    tasks: str
    """Digest of the ids of the training tasks, and of how many a step has."""
    staleness: int
    pins_weights: bool

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def has_same_task_ids(self, checkpoint: Checkpoint) -> bool:
        """True if the checkpoint belongs to a run with the same task ids in the same order, and as many in a step."""
        return bool(checkpoint.state["identity"]["tasks"] == self.tasks)

    def check_same(self, checkpoint: Checkpoint) -> None:
        """Raise CheckpointError if the checkpoint belongs to a different run."""
        was = RunIdentity(**checkpoint.state["identity"])
        if was.seed != self.seed:
            raise CheckpointError(
                "run-changed",
                f"{checkpoint.directory} was made with rllm.trainer.seed={was.seed}, this run has {self.seed}.",
                f"Resume with rllm.trainer.seed={was.seed}.",
            )
        if not self.has_same_task_ids(checkpoint):
            raise CheckpointError(
                "run-changed",
                f"{checkpoint.directory} was made with other ids of training tasks, or a different "
                "data.train_batch_size.",
                "Resume with the same environment, options and data.train_batch_size as at the first start.",
            )
        if was.staleness != self.staleness:
            raise CheckpointError(
                "run-changed",
                f"{checkpoint.directory} was made with a staleness of {was.staleness}, this run has {self.staleness}.",
                "Resume with the same values of rllm.async_training.",
            )
        if was.pins_weights != self.pins_weights:
            raise CheckpointError(
                "run-changed",
                f"{checkpoint.directory} was made with "
                f"rllm.async_training.partial_rollout={str(not was.pins_weights).lower()}, this run has the other.",
                "Resume with the same values of rllm.async_training.",
            )
