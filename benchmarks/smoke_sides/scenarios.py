"""The runs of `make smoke-gpu`. The most informative ones are first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from smoke_sides.expectations import GRADIENTS, STARTS_AT_ITS_REFERENCE, VERSIONS, Expectation, same_weights

STEPS = 5
SAVED = 2
"""Steps between checkpoints; one run is killed after the first checkpoint."""
SEVERAL = 8
ROUNDING = {"float32": 1e-3, "bfloat16": 2e-2}
"""Largest allowed difference of log-probs between two kernels, by type of weights."""

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
Backend = Literal["local", "verl"]

COMMON = (
    "guess",
    "data.train_batch_size=16",
    "rllm.rollout.n=8",
    f"rllm.trainer.total_batches={STEPS}",
    f"rllm.trainer.save_freq={SAVED}",
    "rllm.trainer.test_freq=-1",
    "rllm.trainer.val_before_train=false",
    "rllm.algorithm.rollout_correction.bypass_mode=false",
    # This gives a gradient even if no rollout is better than another. A model of random weights seldom wins.
    "rllm.algorithm.entropy.coeff=0.01",
)
ON: dict[tuple[Backend, str], tuple[str, ...]] = {
    ("local", "cpu"): ("model.device=cpu",),
    ("local", "cuda"): ("model.device=cuda",),
    ("verl", "cpu"): ("rllm/backend=verl", "--profile", "cpu"),
    ("verl", "cuda"): (
        "rllm/backend=verl",
        "actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        f"{ROLLOUT}.gpu_memory_utilization=0.3",
        f"{ROLLOUT}.enforce_eager=true",
        "deadlines.sync_weights=120",
    ),
}
"""Overrides that choose a backend on a type of device."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A run and its expected values."""

    name: str
    backend: Backend
    words: tuple[str, ...] = ()
    expectations: tuple[Expectation, ...]
    several: bool = False
    """True if it runs on all devices, up to `SEVERAL`."""
    killed: bool = False
    """True if it is killed after its first checkpoint, and resumed."""

    def command(self, model: str, device: str, devices: int) -> tuple[str, ...]:
        """Return the arguments of `rllm train`.

        Args:
            model: directory of the model.
            device: ``cuda`` or ``cpu``.
            devices: number of devices.
        """
        count = (f"trainer.n_gpus_per_node={devices}",) if self.backend == "verl" else ()
        return ("train", *COMMON, "--model", model, *ON[self.backend, device], *count, *self.words)


def _of_weights(dtype: str) -> tuple[Expectation, ...]:
    return (VERSIONS, GRADIENTS, same_weights(ROUNDING[dtype]))


OFFLOAD = (f"{ACTOR}.fsdp_config.param_offload=true", f"{ACTOR}.fsdp_config.optimizer_offload=true")
LORA = "actor_rollout_ref.model.lora_rank=8"
SCENARIOS: Sequence[Scenario] = (
    Scenario(name="local, float32", backend="local", expectations=_of_weights("float32")),
    Scenario(
        name="local, bfloat16",
        backend="local",
        words=("model.dtype=bfloat16",),
        expectations=_of_weights("bfloat16"),
    ),
    Scenario(name="verl", backend="verl", expectations=_of_weights("bfloat16")),
    Scenario(
        name="verl, offloaded, with a reference model",
        backend="verl",
        words=(*OFFLOAD, "rllm.algorithm.kl_beta=0.01"),
        expectations=(*_of_weights("bfloat16"), STARTS_AT_ITS_REFERENCE),
    ),
    Scenario(name="verl, LoRA adapters", backend="verl", words=(LORA,), expectations=_of_weights("bfloat16")),
    Scenario(
        name="verl, LoRA merged",
        backend="verl",
        words=(LORA, "actor_rollout_ref.model.lora.merge=true"),
        expectations=_of_weights("bfloat16"),
    ),
    Scenario(
        name="verl, killed and resumed",
        backend="verl",
        expectations=_of_weights("bfloat16"),
        killed=True,
    ),
    Scenario(name="verl, all devices", backend="verl", expectations=_of_weights("bfloat16"), several=True),
    Scenario(
        name="verl, all devices, two to a server",
        backend="verl",
        words=(f"{ROLLOUT}.tensor_model_parallel_size=2",),
        expectations=_of_weights("bfloat16"),
        several=True,
    ),
)
