"""The plugin under the real verl and Ray: one worker that trains, its rollout server, and updates between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from rllm_core.errors import BackendError, RolloutError

DEADLINE = 100.0
WORKERS = 1
PROMPTS = [[10, 11, 12], [40, 41], [13, 14, 15, 16, 17], [20, 21, 22, 23]]
SAMPLING = {"max_tokens": 12, "temperature": 0.7, "top_p": 1.0, "top_k": -1, "stop_token_ids": [2]}
FP32 = "{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}"
VARIABLES = {
    "VERL_PLATFORM": "cpu",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Else Ray warns that it will one day no longer hide GPUs from workers without any.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
CONFIG = {
    "+model.override_config.attn_implementation": "sdpa",
    "model.enable_gradient_checkpointing": False,
    "actor.strategy": "fsdp2",
    "actor.fsdp_config.strategy": "fsdp2",
    "+actor.fsdp_config.mixed_precision": FP32,
    "actor.fsdp_config.use_torch_compile": False,
    "actor.use_torch_compile": False,
    "actor.ppo_mini_batch_size": 4,
    "actor.ppo_micro_batch_size_per_gpu": 4,
    "rollout.name": "rllm_hf",
    "rollout.dtype": "float32",
    "rollout.tensor_model_parallel_size": 1,
    "rollout.n_gpus_per_node": WORKERS,
    "rollout.log_prob_micro_batch_size_per_gpu": 4,
    "rollout.full_determinism": True,
    "rollout.free_cache_engine": False,
    # Each weight is a separate message.
    "rollout.checkpoint_engine.update_weights_bucket_megabytes": 0,
}


def composed(model_directory: Path) -> Any:
    """verl's configuration of its PPO trainer, with what differs without a GPU."""
    import verl
    from hydra import compose, initialize_config_dir

    overrides = ["data.max_prompt_length=32", "data.max_response_length=16", "trainer.device=cpu"]
    for name, value in (CONFIG | {"model.path": model_directory}).items():
        plus = "+" if name.startswith("+") else ""
        overrides.append(f"{plus}actor_rollout_ref.{name.removeprefix('+')}={value}")
    directory = str(Path(verl.__file__).parent / "trainer" / "config")
    with initialize_config_dir(config_dir=directory, version_base=None):
        return compose("ppo_trainer", overrides=overrides)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray cluster of this process."""
    patch = pytest.MonkeyPatch()
    for name, value in VARIABLES.items():
        patch.setenv(name, value)
    import ray

    ray.init(
        num_cpus=WORKERS,
        num_gpus=WORKERS,
        include_dashboard=False,
        object_store_memory=128 << 20,
        log_to_driver=False,
        runtime_env={"env_vars": VARIABLES},
    )
    try:
        yield
    finally:
        ray.shutdown()
        patch.undo()


@dataclass
class Trained:
    """Workers that train and servers that sample."""

    workers: Any
    servers: Any
    updates: Any
    config: Any

    def sampled(self, step: int) -> list[Any]:
        """A response to each prompt, by verl's client."""

        async def main() -> list[Any]:
            client = self.servers.get_client()
            calls = [
                client.generate(f"{step}:{index}", prompt_ids=prompt, sampling_params=SAMPLING | {"seed": index})
                for index, prompt in enumerate(PROMPTS)
            ]
            return await asyncio.wait_for(asyncio.gather(*calls), DEADLINE)

        return asyncio.run(main())

    def scored(self, responses: list[Any]) -> list[list[float]]:
        """Log-probs of the responses' tokens under the trainer's weights."""
        from verl.utils import tensordict_utils

        data = batch_of(responses)
        tensordict_utils.assign_non_tensor(data, calculate_entropy=False, compute_loss=False, temperature=0.7)
        outputs = tensordict_utils.get(self.workers.compute_log_prob(data), "log_probs")
        # What stands at a token is about the token after it.
        return [row[len(prompt) - 1 : -1].tolist() for prompt, row in zip(PROMPTS, outputs.unbind(), strict=True)]

    def train(self, responses: list[Any]) -> float:
        """One step towards the responses; returns the gradient's norm."""
        from verl.utils import tensordict_utils

        data = batch_of(responses)
        tensordict_utils.assign_non_tensor(
            data, calculate_entropy=False, temperature=1.0, global_batch_size=len(responses)
        )
        self.workers.optimizer_zero_grad()
        self.workers.forward_backward(data).get()
        return float(self.workers.optimizer_step({"lr": 1e-2})[0]["grad_norm"])


def batch_of(responses: list[Any]) -> Any:
    """Prompts and responses, one row each, without padding."""
    from tensordict import TensorDict

    rows = [torch.tensor(prompt + response.token_ids) for prompt, response in zip(PROMPTS, responses, strict=True)]
    masks = [torch.ones(len(row)) for row in rows]
    for mask, prompt in zip(masks, PROMPTS, strict=True):
        mask[: len(prompt)] = 0
    columns = {"input_ids": rows, "position_ids": [torch.arange(len(row)) for row in rows], "loss_mask": masks}
    nested = {name: torch.nested.as_nested_tensor(parts, layout=torch.jagged) for name, parts in columns.items()}
    return TensorDict(nested, batch_size=[len(rows)])


@pytest.fixture(scope="module")
def trained(cluster: None, model_directory: Path) -> Trained:
    import ray
    from verl.checkpoint_engine import CheckpointEngineManager
    from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup, ResourcePoolManager
    from verl.trainer.ppo.utils import Role
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine_workers_tinker import TinkerActorRolloutRefWorker
    from verl.workers.rollout.llm_server import LLMServerManager
    from verl.workers.utils.losses import sft_loss

    config = composed(model_directory)
    pools = ResourcePoolManager({"all": [WORKERS]}, {Role.ActorRollout: "all"}, max_colocate_count=1)
    pools.create_resource_pool()
    workers = RayWorkerGroup(
        resource_pool=pools.get_resource_pool(Role.ActorRollout),
        ray_cls_with_init=RayClassWithInitArgs(
            ray.remote(TinkerActorRolloutRefWorker), config=config.actor_rollout_ref, role="actor_rollout"
        ),
        device_name="cpu",
    )
    workers.init_model()
    workers.set_loss_fn(partial(sft_loss, config=None))
    servers = LLMServerManager.create(config=config, worker_group=workers)
    transfer = omega_conf_to_dataclass(config.actor_rollout_ref.rollout.checkpoint_engine)
    updates = CheckpointEngineManager(config=transfer, actor_wg=workers, replicas=servers.get_replicas())
    return Trained(workers, servers, updates, config)


def assert_updates_arrive(trained: Trained) -> None:
    """After each of several updates, trainer and server agree on what was sampled."""
    sampled = []
    for step in range(3):
        trained.updates.update_weights(step)
        responses = trained.sampled(step)
        assert {response.extra_fields["global_steps"] for response in responses} == {step}
        for response, scores in zip(responses, trained.scored(responses), strict=True):
            np.testing.assert_allclose(response.log_probs, scores, atol=1e-4)
        sampled.append([response.log_probs for response in responses])
        assert trained.train(responses) > 0
    assert sampled[0] != sampled[1] != sampled[2]


def assert_errors_arrive(trained: Trained) -> None:
    """What the server refuses, its caller is told in our words, also when other processes stand between."""
    client = trained.servers.get_client()
    with pytest.raises(RolloutError, match="60 tokens leaves no room in a context of 48"):
        asyncio.run(client.generate("long", prompt_ids=[10] * 60, sampling_params=SAMPLING | {"seed": 0}))


def assert_wrong_weights_are_refused(trained: Trained) -> None:
    """The trainer receives the error about weights that do not fit after all are gathered. The server continues."""
    from verl.utils.config import omega_conf_to_dataclass

    from rllm_verl.cpu.adapter import CpuRollout

    settings = trained.config.actor_rollout_ref
    rollout = CpuRollout(omega_conf_to_dataclass(settings.rollout), settings.model, None, replica_rank=0)
    rollout._server = trained.servers.server_handles[0]  # a worker finds it by what it is itself
    gathered = []

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for name in ("critic.weight", "critic.bias", "other"):
            gathered.append(name)
            yield name, torch.zeros(2)

    with pytest.raises(BackendError, match=r"has no weights critic\.weight"):
        asyncio.run(rollout.update_weights(weights(), global_steps=9))
    assert gathered == ["critic.weight", "critic.bias", "other"]
    assert trained.sampled(3)[0].extra_fields["global_steps"] == 2


def assert_nothing_is_left() -> None:
    """Once Ray is shut down, none of its processes runs."""
    import ray

    # Other tests of this process may have left helpers of multiprocessing to its end.
    daemons = [process for process in psutil.Process().children() if process.name() in ("raylet", "gcs_server")]
    processes = [*daemons, *(child for daemon in daemons for child in daemon.children(recursive=True))]
    assert {process.name() for process in daemons} == {"raylet", "gcs_server"}
    assert len(processes) > len(daemons)
    ray.shutdown()
    end = time.monotonic() + DEADLINE
    while running := [process for process in processes if process.is_running() and process.status() != "zombie"]:
        assert time.monotonic() < end, running
        time.sleep(0.1)


# One test: its parts share a cluster whose start takes most of the time, and the last one shuts it down. Beside other
# work on the machine, even the start of its processes can take more than a minute.
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_worker_and_its_rollout_server_agree_under_the_real_verl(trained: Trained) -> None:
    assert_updates_arrive(trained)
    assert_errors_arrive(trained)
    assert_wrong_weights_are_refused(trained)
    assert_nothing_is_left()
