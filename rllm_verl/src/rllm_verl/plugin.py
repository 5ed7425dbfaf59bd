"""The plugin spec of the backend `verl`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rllm_backend_kit import COMMON_KEYS
from rllm_core.contracts.backend import BackendPlugin, Capabilities, RunContext
from rllm_core.lazy import call_lazily, load_from
from rllm_core.plugins import hookimpl
from rllm_verl.fused import DERIVED_FUSED_KERNELS
from rllm_verl.gpus import DERIVED_NUM_GPUS, DERIVED_TRANSFER, check_overlap, footprint
from rllm_verl.installed import config_search_path, config_yaml, examine_gpus
from rllm_verl.keys import (
    DERIVED_KEYS,
    LEARNING_RATE,
    LORA_RANK,
    MODEL_PATH,
    SHARED_KEYS,
    TINY,
    UNUSED_KEYS,
    UNUSED_KEYS_BY_PROFILE,
)
from rllm_verl.logprobs import DERIVED_LOGPROBS_MODE

if TYPE_CHECKING:
    from rllm_core.contracts.renderer import Renderer
    from rllm_verl.settings import VerlConfig

requires_api = 1


def early_renderer(run: RunContext) -> tuple[Renderer, int] | None:
    """Return the run's renderer and longest context. None if the model is not a Hugging Face directory on this machine.

    Raises:
        ConfigError: the model cannot be trained with the run's settings, or the renderer does not support it.
    """
    from rllm_backend_kit.model_files import model_directory, silence_transformers
    from rllm_backend_kit.renderers import make_renderer
    from rllm_verl.model import open_directory
    from rllm_verl.native import native_config
    from rllm_verl.state import has_only_shards

    settings: VerlConfig = run.backend_config
    name = settings.actor_rollout_ref["model"]["path"]
    path = Path(name).expanduser()
    directory = None if name == TINY or has_only_shards(path) else model_directory(path)
    if directory is None:
        return None
    silence_transformers()
    model = open_directory(directory, digest="", without_thinking=run.config.rllm.disable_thinking)
    native = native_config(settings, model, run.total_steps, run.needs)
    return make_renderer(run, model.rendering), native.actor_rollout_ref.rollout.max_model_len


@hookimpl
def rllm_backends() -> Iterable[BackendPlugin[VerlConfig]]:
    yield BackendPlugin(
        name="verl",
        summary="verl: many GPUs through Ray, FSDP or Megatron and vLLM; with --profile cpu, this machine.",
        load_params=load_from("rllm_verl.settings", "VerlConfig"),
        load=load_from("rllm_verl.backend", "VerlBackend"),
        check=call_lazily("rllm_verl.checks", "check_config"),
        check_run=check_overlap,
        footprint=footprint,
        early_renderer=early_renderer,
        config_keys=COMMON_KEYS,
        config_yaml=config_yaml,
        config_search_path=config_search_path(),
        profiles={
            "cpu": "A machine without a GPU: the sampler of rllm-local, float32, gloo; the model is tiny by default.",
            "cpu_vllm": "Like cpu, with vLLM's CPU build as the rollout server. You must set a model.",
            "megatron": "Training with Megatron instead of FSDP.",
        },
        shared_keys=SHARED_KEYS,
        derived_keys=(*DERIVED_KEYS, DERIVED_LOGPROBS_MODE, DERIVED_FUSED_KERNELS, DERIVED_TRANSFER, DERIVED_NUM_GPUS),
        unused_keys=UNUSED_KEYS,
        translate=call_lazily("rllm_verl.translation", "translate"),
        fetch_model=call_lazily("rllm_verl.state", "fetch_model"),
        examine_gpus=examine_gpus,
        training_keys=lambda: frozenset({"training.*", "actor_rollout_ref.actor.optim.*"}),
        unused_keys_by_profile=UNUSED_KEYS_BY_PROFILE,
        model_key=MODEL_PATH,
        learning_rate_key=LEARNING_RATE,
        lora_rank_key=LORA_RANK,
        minibatches_key="training.num_minibatches",
        capabilities=Capabilities(
            custom_losses=True,
            installed_losses_only=True,
            columns=frozenset({"old_logprobs", "ref_logprobs", "sum_pi_squared"}),
            overlap=frozenset({"latest"}),
            token_trace=True,
            observations=True,
        ),
    )
