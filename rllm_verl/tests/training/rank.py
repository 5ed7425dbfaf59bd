"""One rank of a data-parallel group of verl's real training workers, on gloo: in this process, or as a script.

As a script it makes all ranks of a group. They are told on the command line where the driver listens, execute the calls
that come from there, and end when the driver hangs up.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Client
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import torch

BETAS = (0.9, 0.95)
EPS = 1e-4
"""Large, or the first steps of Adam would be signs of gradients, also where these are noise."""
CLIP = 1.0


@dataclass(frozen=True)
class Place:
    """Of a rank in its group."""

    rank: int
    world: int
    port: int
    """Where the ranks meet."""

    def environment(self) -> dict[str, str]:
        return {
            "VERL_PLATFORM": "cpu",
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "OMP_NUM_THREADS": "1",
        }


class Rank:
    """A worker that can be put back to where it began. All ranks of a group must be called alike."""

    def __init__(self, directory: str, place: Place, *, lora_rank: int = 0, fused: bool = False) -> None:
        os.environ.update(place.environment())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.worker = _worker(directory, lora_rank, fused)
        self._module = self.worker.engine.module
        self._initial = [_local(each).detach().clone() for each in self._module.parameters()]

    def call(self, method: str, *arguments: Any) -> Any:
        """A method of the worker, or one of those below."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(self if hasattr(self, method) else self.worker, method)(*arguments)

    def compute_log_prob(self, data: Any) -> Any:
        return self.worker.infer_batch(data)

    def restart(self, engine_settings: dict[str, Any]) -> None:
        """With the weights of the directory, a fresh optimizer and these settings of micro-batches."""
        import torch

        with torch.no_grad():
            for parameter, initial in zip(self._module.parameters(), self._initial, strict=True):
                _local(parameter).copy_(initial)
        self.worker.engine.optimizer.state.clear()
        self.worker.engine.optimizer_zero_grad()
        for name, value in engine_settings.items():
            setattr(self.worker.engine_config, name, value)

    def weights(self) -> torch.Tensor:
        """All parameters as one vector."""
        import torch

        return torch.cat([_gather_parameter(each.detach()).flatten() for each in self._module.parameters()])

    def close(self) -> None:
        import torch.distributed

        torch.distributed.destroy_process_group()


def _worker(directory: str, lora_rank: int, fused: bool) -> Any:
    """`fused`: with verl's fused kernels, and rows packed as in a run."""
    import torch
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig, TrainingWorkerConfig
    from verl.workers.engine_workers_tinker import TinkerTrainingWorker

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    adapter = {"lora_rank": lora_rank, "target_modules": ["q_proj", "v_proj"]} if lora_rank else {}
    model = HFModelConfig(
        path=directory,
        override_config={"attn_implementation": "sdpa"},
        use_remove_padding=fused,
        use_fused_kernels=fused,
        fused_kernel_options={"impl_backend": "torch"},
        enable_gradient_checkpointing=False,
        **adapter,
    )
    engine = FSDPEngineConfig(
        strategy="fsdp2",
        use_torch_compile=False,
        mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    )
    optimizer = FSDPOptimizerConfig(
        lr=1.0,
        betas=BETAS,
        weight_decay=0.0,
        clip_grad=CLIP,
        total_training_steps=10,
        override_optimizer_config={"eps": EPS},
    )
    worker = TinkerTrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=model,
            engine_config=engine,
            optimizer_config=optimizer,
            checkpoint_config=CheckpointConfig(),
        )
    )
    worker.reset()
    return worker


def _local(parameter: Any) -> Any:
    """This rank's shard."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def _gather_parameter(parameter: Any) -> Any:
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def main(address: str, directory: str, world: str, port: str, lora_rank: str, fused: str) -> None:
    os.environ["VERL_PLATFORM"] = "cpu"
    # Imported once for all ranks, which takes longer than all they do.
    import verl.workers.engine_workers_tinker  # noqa: F401

    options = {"lora_rank": int(lora_rank), "fused": bool(int(fused))}
    places = [Place(each, int(world), int(port)) for each in range(int(world))]
    children = [os.fork() or _serve(address, directory, place, options) for place in places]
    for child in children:
        os.waitpid(child, 0)


def _serve(address: str, directory: str, place: Place, options: dict[str, Any]) -> NoReturn:
    """Execute the driver's calls until it hangs up."""
    with Client(address, authkey=bytes.fromhex(os.environ["RANK_KEY"])) as driver:
        rank = Rank(directory, place, **options)
        driver.send_bytes(pickle.dumps(place.rank))
        while True:
            try:
                method, arguments = pickle.loads(driver.recv_bytes())
            except EOFError:
                break
            try:
                answer = True, rank.call(method, *arguments)
            except Exception:  # noqa: BLE001  (told to the driver, which fails the test)
                answer = False, traceback.format_exc()
            driver.send_bytes(pickle.dumps(answer))
        rank.close()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
