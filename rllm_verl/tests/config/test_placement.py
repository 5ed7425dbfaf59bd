"""Rollout servers on separate GPUs: the effects of the key, the rejected configs, and the runs that need them."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError
from rllm_verl import footprint as module
from rllm_verl.checks import check_config
from rllm_verl.native import worker_config
from rllm_verl.placement import check_overlap, check_placement

ROLLOUT = "actor_rollout_ref.rollout"
TRANSFER = f"{ROLLOUT}.checkpoint_engine.backend"
CPU = "rllm.profile=cpu"
APART = f"{ROLLOUT}.nnodes=1"
AHEAD = ("rllm.async_training.enable=true", "rllm.async_training.staleness_threshold=1")
NEWEST = "rllm.async_training.partial_rollout=true"


@pytest.mark.parametrize(
    ("words", "transfer"),
    [((CPU,), "naive"), ((CPU, APART), "rllm_ray"), ((), "naive"), ((APART,), "nccl")],
    ids=["cpu", "cpu, apart", "gpu", "gpu, apart"],
)
def test_how_weights_travel_follows_from_where_servers_run(run: Any, words: tuple[str, ...], transfer: str) -> None:
    assert run(*words).value(TRANSFER) == transfer


def test_on_gpus_another_transfer_of_verls_may_be_chosen(run: Any) -> None:
    assert run(APART, f"{TRANSFER}=nixl").value(TRANSFER) == "nixl"


def test_ray_counts_the_processes_of_servers_as_gpus_without_one(run: Any) -> None:
    words = ("trainer.n_gpus_per_node=2", f"{ROLLOUT}.nnodes=2", f"{ROLLOUT}.n_gpus_per_node=3")
    assert run(CPU, *words).value("ray_kwargs.ray_init.num_gpus") == 2 + 2 * 3
    assert run(*words).value("ray_kwargs.ray_init.num_gpus") is None


def test_servers_have_as_many_gpus_on_a_node_as_training_unless_it_is_said(run: Any) -> None:
    assert run(CPU, APART, "trainer.n_gpus_per_node=2").value(f"{ROLLOUT}.n_gpus_per_node") == 2


LORA = "actor_rollout_ref.model.lora_rank=4"


@pytest.mark.parametrize(
    ("words", "code", "values"),
    [
        ((f"{ROLLOUT}.nnodes=-1",), "wrong-value", [f"`{ROLLOUT}.nnodes`", -1]),
        ((APART, f"{ROLLOUT}.n_gpus_per_node=0"), "wrong-value", [f"`{ROLLOUT}.n_gpus_per_node`", 0]),
        ((f"{TRANSFER}=nccl",), "unsupported-weight-transfer", [f"`{TRANSFER}`", "nccl", f"{ROLLOUT}.nnodes"]),
        ((APART, f"{TRANSFER}=naive"), "unsupported-weight-transfer", [f"`{TRANSFER}`", "naive", f"{ROLLOUT}.nnodes"]),
        ((APART, f"{TRANSFER}=nccl"), "unsupported-weight-transfer", [f"`{TRANSFER}`", "nccl", f"{ROLLOUT}.nnodes"]),
        (
            (APART, f"{ROLLOUT}.tensor_model_parallel_size=2"),
            "unsupported-parallelism",
            ["tensor_model_parallel_size`", "1 GPU"],
        ),
        ((APART, f"{ROLLOUT}.name=vllm", LORA), "lora-needs-merge", ["actor_rollout_ref.model.lora.merge=true"]),
    ],
)
def test_what_cannot_work_is_refused(
    run: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: str, values: list[object]
) -> None:
    monkeypatch.setattr("rllm_verl.checks.find_spec", lambda name: name)
    with expect_error(ConfigError, code, *values):
        check_config(run(CPU, *words).backend_config)


def test_verls_transfer_between_gpus_says_what_it_needs(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllm_verl.placement.find_spec", lambda name: None)
    with expect_error(ConfigError, "missing-package", f"`{TRANSFER}`", "pip install cupy-cuda13x"):
        check_placement(run(APART).backend_config.native())
    check_placement(run(APART, f"{TRANSFER}=mooncake").backend_config.native())


def test_separate_servers_may_be_larger_than_training(run: Any) -> None:
    """verl asks that those that train can be dealt to servers, which are not theirs."""
    words = (f"{ROLLOUT}.n_gpus_per_node=2", f"{ROLLOUT}.tensor_model_parallel_size=2")
    config = run(APART, *words).backend_config.native()
    from omegaconf import OmegaConf

    native = OmegaConf.create(config)
    assert worker_config(native).rollout.tensor_model_parallel_size == 1
    assert native.actor_rollout_ref.rollout.tensor_model_parallel_size == 2


def test_servers_on_separate_gpus_generate_ahead(plan: Any) -> None:
    assert plan(CPU, APART, *AHEAD, NEWEST).batches_ahead == 1


def test_batches_ahead_on_shared_gpus_are_rejected(run: Any) -> None:
    composed = run(CPU, *AHEAD, NEWEST)
    keys = ("`rllm.async_training.staleness_threshold`", f"{ROLLOUT}.nnodes=1")
    with expect_error(ConfigError, "no-overlap", *keys):
        check_overlap(composed.config, composed.backend_config)


@pytest.mark.parametrize(
    "words",
    [(), (APART, *AHEAD, NEWEST), (*AHEAD, NEWEST, "rllm.trainer.val_only=true"), AHEAD[:1]],
    ids=["synchronous", "apart", "a validation", "only the switch"],
)
def test_other_runs_may_place_servers_anywhere(run: Any, words: tuple[str, ...]) -> None:
    composed = run(CPU, *words)
    check_overlap(composed.config, composed.backend_config)


def test_fixed_version_weights_are_rejected_with_a_hint(plan: Any) -> None:
    with expect_error(ConfigError, "weights-not-pinned", "'verl'", NEWEST):
        plan(CPU, APART, *AHEAD)


@pytest.mark.parametrize(("words", "rows"), [((), None), ((APART,), "2"), ((f"{ROLLOUT}.nnodes=2",), "4")])
def test_a_plan_lists_servers_with_separate_gpus(run: Any, words: tuple[str, ...], rows: str | None) -> None:
    composed = run(CPU, "trainer.n_gpus_per_node=2", *words)
    found = module.footprint(composed.backend_config, composed.config, frozenset())
    assert (found and [value for _, value in found.rows]) == (rows and [rows])
