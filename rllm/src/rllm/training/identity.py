"""What a resumed run shares with the run that it goes on from: the order of its tasks, and which weights play them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rllm.runs.checkpoint import Checkpoint
from rllm_core.errors import CheckpointError


@dataclass(frozen=True)
class RunIdentity:
    """Kept in every checkpoint. A run with another one would train on other tasks than it has drawn, or on other
    tokens than its bound allows."""

    seed: int
    tasks: str
    """Digest of the training tasks and of how many a step has."""
    staleness: int
    pins_weights: bool

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def check_same(self, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError: the checkpoint is of another run."""
        was = RunIdentity(**checkpoint.state["identity"])
        if was.seed != self.seed:
            raise CheckpointError(
                "run-changed",
                f"{checkpoint.directory} was made with rllm.trainer.seed={was.seed}, this run has {self.seed}.",
                "Resume with the same seed.",
            )
        if was.tasks != self.tasks:
            raise CheckpointError(
                "run-changed",
                f"{checkpoint.directory} was made with other training tasks than this run has.",
                "Resume with the environment, its options and data.train_batch_size as they were.",
            )
        if was.staleness != self.staleness:
            raise CheckpointError(
                "run-changed",
                f"{checkpoint.directory} was made with a staleness of {was.staleness}, this run has {self.staleness}.",
                "Resume with rllm.async_training as it was.",
            )
        if was.pins_weights != self.pins_weights:
            raise CheckpointError(
                "run-changed",
                f"{checkpoint.directory} was made with "
                f"rllm.async_training.partial_rollout={str(not was.pins_weights).lower()}, this run has the other.",
                "Resume with rllm.async_training as it was.",
            )
