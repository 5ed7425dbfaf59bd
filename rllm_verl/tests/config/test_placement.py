"""Rollout servers on separate GPUs: the effects of the key, the rejected configs, and the runs that need them."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error
from omegaconf import OmegaConf

from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig
from rllm_verl.checks import check_config
from rllm_verl.gpus import DERIVED_NUM_GPUS, DERIVED_TRANSFER, check_overlap, check_placement
from rllm_verl.native import worker_config

ROLLOUT = "actor_rollout_ref.rollout"
TRANSFER = f"{ROLLOUT}.checkpoint_engine.backend"
TENSOR_PARALLEL = f"{ROLLOUT}.tensor_model_parallel_size"
NODES, PER_NODE = f"{ROLLOUT}.nnodes", f"{ROLLOUT}.n_gpus_per_node"
APART = {NODES: 1, TRANSFER: "rllm_ray"}
CPU = "rllm.profile=cpu"
AHEAD = ("rllm.async_training.enable=true", "rllm.async_training.staleness_threshold=1")
NEWEST = "rllm.async_training.partial_rollout=true"


@pytest.mark.parametrize(
    ("nodes", "device", "transfer"),
    [(0, "cpu", "naive"), (1, "cpu", "rllm_ray"), (0, "cuda", "naive"), (1, "cuda", "nccl")],
)
def test_how_weights_travel_follows_from_where_servers_run(nodes: int, device: str, transfer: str) -> None:
    assert DERIVED_TRANSFER.derive(nodes, device) == transfer


def test_ray_counts_processes_as_gpus_without_one() -> None:
    assert DERIVED_NUM_GPUS.derive("cpu", 2, 1, 3, 2) == 2 + 2 * 3
    assert DERIVED_NUM_GPUS.derive("cpu", 2, 3, 5, 0) == 2 * 3
    assert DERIVED_NUM_GPUS.derive("cuda", 2, 1, 3, 2) is None


def test_keys_of_separate_servers_are_derived(run: Any) -> None:
    servers = run(CPU, "trainer.n_gpus_per_node=2", "trainer.nnodes=3", f"{NODES}=2")
    assert servers.value(TRANSFER) == "rllm_ray"
    assert servers.value(PER_NODE) == 2, "as many as training has on a node"
    assert servers.value("ray_kwargs.ray_init.num_gpus") == 2 * 3 + 2 * 2
    on_gpus = run(f"{NODES}=1", f"{TRANSFER}=nixl")
    assert on_gpus.value(TRANSFER) == "nixl"
    assert on_gpus.value("ray_kwargs.ray_init.num_gpus") is None


@pytest.mark.parametrize(
    ("values", "code", "said"),
    [
        ({NODES: -1}, "wrong-value", [f"`{NODES}`", -1]),
        (APART | {PER_NODE: 0}, "wrong-value", [f"`{PER_NODE}`", 0]),
        ({TRANSFER: "nccl"}, "unsupported-weight-transfer", [f"`{TRANSFER}`", "nccl", NODES]),
        (APART | {TRANSFER: "naive"}, "unsupported-weight-transfer", [f"`{TRANSFER}`", "naive", NODES]),
        (APART | {TRANSFER: "nccl"}, "unsupported-weight-transfer", [f"`{TRANSFER}`", "nccl", NODES]),
        (APART | {TENSOR_PARALLEL: 2}, "unsupported-parallelism", ["tensor_model_parallel_size`", "1 GPU"]),
        (
            APART | {f"{ROLLOUT}.name": "vllm", "actor_rollout_ref.model.lora_rank": 4},
            "lora-needs-merge",
            ["actor_rollout_ref.model.lora.merge=true"],
        ),
    ],
)
def test_what_cannot_work_is_refused(
    change: Any, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], code: str, said: list[object]
) -> None:
    monkeypatch.setattr("rllm_verl.checks.find_spec", lambda name: name)
    with expect_error(ConfigError, code, *said):
        check_config(change("cpu", values))


def test_verls_transfer_between_gpus_says_what_it_needs(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllm_verl.gpus.find_spec", lambda name: None)
    with expect_error(ConfigError, "missing-package", f"`{TRANSFER}`", "pip install cupy-cuda13x"):
        check_placement(change(None, APART | {TRANSFER: "nccl"}).native())
    check_placement(change(None, APART | {TRANSFER: "mooncake"}).native())


def test_separate_servers_may_be_larger_than_training(change: Any) -> None:
    """verl asks that those that train can be dealt to servers, which are not theirs."""
    native = OmegaConf.create(change(None, APART | {PER_NODE: 2, TENSOR_PARALLEL: 2}).native())
    assert worker_config(native).rollout.tensor_model_parallel_size == 1
    assert native.actor_rollout_ref.rollout.tensor_model_parallel_size == 2


def test_only_servers_on_separate_gpus_generate_ahead(change: Any) -> None:
    def check(apart: dict[str, Any], **sections: dict[str, Any]) -> None:
        check_overlap(RunConfig.model_validate({"rllm": sections}), change("cpu", apart))

    ahead = {"enable": True, "staleness_threshold": 1, "partial_rollout": True}
    with expect_error(ConfigError, "no-overlap", "`rllm.async_training.staleness_threshold`", f"{NODES}=1"):
        check({}, async_training=ahead)
    check({})
    check(APART, async_training=ahead)
    check({}, async_training=ahead, trainer={"val_only": True})
    check({}, async_training={"enable": True})


def test_fixed_version_weights_are_rejected_with_a_hint(plan: Any) -> None:
    with expect_error(ConfigError, "weights-not-pinned", "'verl'", NEWEST):
        plan(CPU, f"{NODES}=1", *AHEAD)
    assert plan(CPU, f"{NODES}=1", *AHEAD, NEWEST).batches_ahead == 1
