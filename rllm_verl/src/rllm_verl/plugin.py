"""The plugin spec of the backend `verl`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rllm_backend_kit.config_keys import COMMON_KEYS
from rllm_core.contracts.backend import BackendPlugin, Capabilities, RunContext
from rllm_core.contracts.finding import Finding
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl
from rllm_verl.checks import check_config
from rllm_verl.footprint import footprint
from rllm_verl.fused import FUSED_FOLLOWS
from rllm_verl.installed import config_search_path, config_yaml
from rllm_verl.placement import RAYS_GPUS_FOLLOW, TRANSFER_FOLLOWS, check_overlap
from rllm_verl.settings import VerlConfig
from rllm_verl.shared_keys import DERIVED_KEYS, LEARNING_RATE, LORA_RANK, MODEL, SHARED_KEYS
from rllm_verl.translation import translate
from rllm_verl.unused_keys import IDLE_KEYS, IDLE_KEYS_OF_PROFILES

if TYPE_CHECKING:
    from rllm_core.contracts.renderer import Renderer

requires_api = 1


def _fetch_model(directory: Path, into: Path) -> None:
    from rllm_verl.fetching import fetch_model

    fetch_model(directory, into)


def _early_renderer(run: RunContext) -> tuple[Renderer, int] | None:
    from rllm_verl.early_renderer import early_renderer

    return early_renderer(run)


def _examine_gpus() -> Iterable[Finding]:
    from rllm_verl.gpu_checks import examine_gpus

    return examine_gpus()


@hookimpl
def rllm_backends() -> Iterable[BackendPlugin[VerlConfig]]:
    yield BackendPlugin(
        name="verl",
        summary="verl: many GPUs through Ray, FSDP or Megatron and vLLM; with --profile cpu, this machine.",
        params=VerlConfig,
        load=load_from("rllm_verl.backend", "VerlBackend"),
        check=check_config,
        check_run=check_overlap,
        footprint=footprint,
        early_renderer=_early_renderer,
        config_keys=COMMON_KEYS,
        config_yaml=config_yaml,
        config_search_path=config_search_path(),
        profiles={
            "cpu": "A machine without a GPU: the sampler of rllm-local, float32, gloo; the model is tiny by default.",
            "cpu_vllm": "Like cpu, with vLLM's CPU build as the rollout server. You must set a model.",
            "megatron": "Training with Megatron instead of FSDP.",
        },
        shared_keys=SHARED_KEYS,
        derived_keys=(*DERIVED_KEYS, FUSED_FOLLOWS, TRANSFER_FOLLOWS, RAYS_GPUS_FOLLOW),
        unused_keys=IDLE_KEYS,
        translate=translate,
        fetch_model=_fetch_model,
        examine_gpus=_examine_gpus,
        training_keys=frozenset({"training.*", "actor_rollout_ref.actor.optim.*"}),
        unused_keys_by_profile=IDLE_KEYS_OF_PROFILES,
        model_key=MODEL,
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
