"""Ready-made settings: without a GPU, and with Megatron."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import check_values, expect_error

from rllm.config.layers import Layer, Tier
from rllm.config.save import read_config, save_config
from rllm.config.unused import idle_reason
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry

FSDP = "actor_rollout_ref.actor.fsdp_config"


def test_the_cpu_profile_contains_all_cpu_settings(run: Any) -> None:
    composed = run("rllm.profile=cpu")
    assert composed.value("trainer.device") == "cpu"
    assert composed.origins["trainer.device"] == "backend verl, profile cpu"
    assert composed.origins["actor_rollout_ref.rollout.mode"] == "backend verl"
    assert composed.value("actor_rollout_ref.rollout.name") == "rllm_hf"
    assert composed.value("actor_rollout_ref.model.path") == "tiny"
    assert composed.value("actor_rollout_ref.ref.strategy") == "fsdp2"
    assert composed.value(f"{FSDP}.mixed_precision.param_dtype") == "fp32"
    assert composed.value("ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM") == "cpu"


@pytest.mark.long
def test_the_profile_of_vllm_on_a_cpu_is_the_cpu_profile_with_another_server(run: Any) -> None:
    composed = run("rllm.profile=cpu_vllm")
    assert composed.value("trainer.device") == "cpu"
    assert composed.value("actor_rollout_ref.rollout.name") == "vllm"
    assert composed.value("actor_rollout_ref.rollout.dtype") == "float32"
    assert composed.value("actor_rollout_ref.rollout.enable_chunked_prefill") is False
    variables = composed.value("ray_kwargs.ray_init.runtime_env.env_vars")
    assert {name: variables[name] for name in ("VERL_PLATFORM", "VLLM_HOST_IP")} == {
        "VERL_PLATFORM": "cpu",
        "VLLM_HOST_IP": "127.0.0.1",
    }


def test_vllm_keys_apply_only_in_its_cpu_profile(registry: Registry) -> None:
    backend, key = registry.get("backend", "verl").plugin, "actor_rollout_ref.rollout.max_num_batched_tokens"
    assert idle_reason(backend, key, "cpu_vllm") is None
    check_values(str(idle_reason(backend, key, "cpu")), "vLLM", "profile cpu")


def test_ray_counts_a_gpu_for_each_worker_of_the_cpu_profile(run: Any) -> None:
    assert run("rllm.profile=cpu", "trainer.n_gpus_per_node=2").value("ray_kwargs.ray_init.num_gpus") == 2


@pytest.mark.parametrize("environment", ["sum", "guess"])
def test_the_tiny_model_has_the_numbers_of_the_local_backend(run: Any, environment: str) -> None:
    verl = run(f"rllm.env.name={environment}", "rllm.profile=cpu")
    local = run(f"rllm.env.name={environment}", "rllm.backend=local")
    for native, ours in {
        "actor_rollout_ref.actor.optim.lr": "training.learning_rate",
        "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": "training.warmup_steps_ratio",
        "actor_rollout_ref.actor.optim.betas.0": "training.beta1",
        "actor_rollout_ref.actor.ppo_epochs": "training.num_epochs",
        "training.num_minibatches": "training.num_minibatches",
        "actor_rollout_ref.actor.optim.weight_decay": "training.weight_decay",
        "actor_rollout_ref.actor.optim.clip_grad": "training.max_grad_norm",
        "rllm.algorithm.loss_agg_mode": "rllm.algorithm.loss_agg_mode",
        "rllm.algorithm.entropy.coeff": "rllm.algorithm.entropy.coeff",
    }.items():
        key = native.removesuffix(".0")
        found = verl.value(key)
        assert (found[0] if native.endswith(".0") else found) == local.value(ours), native


def test_the_megatron_profile_has_megatrons_keys_and_none_of_fsdp(run: Any) -> None:
    composed = run("rllm.profile=megatron", "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2")
    native = composed.backend_config.native()["actor_rollout_ref"]
    assert native["actor"]["strategy"] == "megatron"
    assert "fsdp_config" not in native["actor"]
    assert "fsdp_config" not in native["ref"]
    assert native["ref"]["megatron"]["tensor_model_parallel_size"] == 2
    assert composed.value("actor_rollout_ref.rollout.mode") == "async"


def test_megatrons_mappings_take_anything_and_only_with_its_profile(run: Any) -> None:
    word = "actor_rollout_ref.actor.megatron.override_transformer_config.fp8=hybrid"
    assert run("rllm.profile=megatron", word, "actor_rollout_ref.actor.megatron.new_option=1")
    with expect_error(ConfigError, "unknown-key", "`megatron`"):
        run(word)


def test_an_unknown_profile_names_those_there_are(run: Any) -> None:
    with expect_error(ConfigError, "unknown-choice", "backend verl", "cpu, cpu_vllm, megatron"):
        run("rllm.profile=gpu")


@pytest.mark.long
def test_a_saved_configuration_keeps_the_profile(run: Any, tmp_path: Any) -> None:
    composed = run("rllm.profile=cpu", "actor_rollout_ref.actor.optim.lr=1e-3")
    save_config(composed.build_saved_config(), tmp_path)
    again = run(Layer("config.yaml", read_config(tmp_path)))
    assert again.tree == composed.tree
    assert again.origins["trainer.device"] != "default"
    resumed = run(Layer("config.yaml", composed.tree, Tier.SAVED))
    assert resumed.value("rllm.profile") == "cpu"
    assert resumed.tree == composed.tree
