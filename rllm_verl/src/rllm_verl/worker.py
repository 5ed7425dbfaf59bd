"""The class of the training processes: verl's worker with checkpoints that are not pickles."""

from __future__ import annotations

from pathlib import Path

import ray
import torch
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager
from verl.workers.engine_workers_tinker import TinkerActorRolloutRefWorker

from rllm_core.errors import CheckpointError
from rllm_verl.shards import load_shard, save_shard
from rllm_verl.sockets import name_socket


class TrainingWorker(TinkerActorRolloutRefWorker):  # type: ignore[misc]  # verl is not typed
    """One training rank. Its own checkpoints support only models that FSDP2 has sharded."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def init_model(self) -> None:
        super().init_model()
        name_socket(self.rollout, ray.get_runtime_context().get_job_id())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def save_shard(self, directory: str) -> None:
        engine = self.actor.engine
        Path(directory).mkdir(parents=True, exist_ok=True)
        states = {name: state for name, state in _random().items() if isinstance(state, torch.Tensor)}
        with engine.train_mode(zero_grad_on_exit=False):
            save_shard(self._file(directory), engine.module, engine.optimizer, states)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def load_shard(self, directory: str) -> None:
        """Load the shard that `save_shard` wrote.

        Raises:
            CheckpointError: the shard is missing (for example if machines do not share the directory), or it belongs to
                a different model.
        """
        file = self._file(directory)
        if not file.is_file():
            raise CheckpointError(
                "checkpoint-not-shared",
                f"{file} does not exist on the machine of worker {self.rank}.",
                "Set rllm.trainer.output_dir to a directory that all machines share.",
            )
        engine = self.actor.engine
        # In this mode all tensors are on the training device, even if they are offloaded between steps.
        with engine.train_mode(zero_grad_on_exit=False):
            random = load_shard(file, engine.module, engine.optimizer)
        BaseCheckpointManager.load_rng_state(_random() | random)

    def _file(self, directory: str) -> Path:
        return Path(directory) / f"rank_{self.rank}.safetensors"


def _random() -> dict[str, object]:
    """Return the states of this process's random generators. torch's generators are listed by device."""
    states: dict[str, object] = BaseCheckpointManager.get_rng_state()
    return states
