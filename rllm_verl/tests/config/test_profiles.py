"""Ready-made settings: without a GPU, and with Megatron."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError

ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"
VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars"


@pytest.mark.parametrize(
    ("profile", "values"),
    [
        (
            "cpu",
            {
                f"{ROLLOUT}.name": "rllm_hf",
                f"{ROLLOUT}.mode": "async",
                "actor_rollout_ref.model.path": "tiny",
                "actor_rollout_ref.ref.strategy": "fsdp2",
                f"{ACTOR}.fsdp_config.mixed_precision.param_dtype": "fp32",
            },
        ),
        (
            "cpu_vllm",
            {
                f"{ROLLOUT}.name": "vllm",
                f"{ROLLOUT}.dtype": "float32",
                f"{ROLLOUT}.enable_chunked_prefill": False,
                f"{VARIABLES}.VLLM_HOST_IP": "127.0.0.1",
            },
        ),
    ],
)
def test_profiles_of_a_cpu_have_all_settings(run: Any, profile: str, values: dict[str, Any]) -> None:
    composed = run(f"rllm.profile={profile}")
    expected = values | {"trainer.device": "cpu", f"{VARIABLES}.VERL_PLATFORM": "cpu"}
    assert {key: composed.value(key) for key in expected} == expected
    assert composed.origins["trainer.device"] == f"backend verl, profile {profile}"
    assert composed.origins[f"{ROLLOUT}.mode"] == "backend verl"


@pytest.mark.parametrize("environment", ["sum", "guess"])
def test_tiny_model_equals_the_local_backend(run: Any, environment: str) -> None:
    verl = run(f"rllm.env.name={environment}", "rllm.profile=cpu")
    local = run(f"rllm.env.name={environment}", "rllm.backend=local")
    same = {
        f"{ACTOR}.optim.lr": "training.learning_rate",
        f"{ACTOR}.optim.lr_warmup_steps_ratio": "training.warmup_steps_ratio",
        f"{ACTOR}.ppo_epochs": "training.num_epochs",
        "training.num_minibatches": "training.num_minibatches",
        f"{ACTOR}.optim.weight_decay": "training.weight_decay",
        f"{ACTOR}.optim.clip_grad": "training.max_grad_norm",
        "rllm.algorithm.loss_agg_mode": "rllm.algorithm.loss_agg_mode",
        "rllm.algorithm.entropy.coeff": "rllm.algorithm.entropy.coeff",
    }
    assert [verl.value(native) for native in same] == [local.value(ours) for ours in same.values()]
    assert verl.value(f"{ACTOR}.optim.betas")[0] == local.value("training.beta1")


def test_megatron_profile_has_no_fsdp_keys(run: Any) -> None:
    # Its mappings take anything.
    words = (f"{ACTOR}.megatron.override_transformer_config.fp8=hybrid", f"{ACTOR}.megatron.new_option=1")
    composed = run("rllm.profile=megatron", f"{ACTOR}.megatron.tensor_model_parallel_size=2", *words)
    native = composed.backend_config.native()["actor_rollout_ref"]
    assert native["actor"]["strategy"] == "megatron"
    assert "fsdp_config" not in native["actor"]
    assert "fsdp_config" not in native["ref"]
    assert native["ref"]["megatron"]["tensor_model_parallel_size"] == 2
    assert composed.value(f"{ROLLOUT}.mode") == "async"
    with expect_error(ConfigError, "unknown-key", "`megatron`"):
        run(words[0])


def test_an_unknown_profile_names_those_there_are(run: Any) -> None:
    with expect_error(ConfigError, "unknown-choice", "backend verl", "cpu, cpu_vllm, megatron"):
        run("rllm.profile=gpu")
