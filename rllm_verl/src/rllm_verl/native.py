"""verl's own configuration for a run: the composed values, and values that are derived from the run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rllm_core.contracts.backend import RunContext
from rllm_core.errors import ConfigError
from rllm_verl.adapters import Adapter
from rllm_verl.attention import check_packing, sequence_parallel_size
from rllm_verl.fused import resolve_fused_kernels
from rllm_verl.gpus import is_disaggregated
from rllm_verl.logprobs import CPU_SERVER, VLLM
from rllm_verl.settings import VerlConfig

if TYPE_CHECKING:
    from rllm_verl.columns import ColumnSettings
    from rllm_verl.model import Model
    from rllm_verl.rows import MicroBatching
    from rllm_verl.update import UpdateSettings

RESUMED = ["model", "optimizer", "extra"]
"""Checkpoint parts that verl needs to resume. Its other parts are the model for other programs."""
SHARDED_BY_US = "fsdp2"
"""The strategy for which rllm writes the checkpoints. With other strategies verl writes its own, which are pickles."""

WORKER_KEY, WORKER = "worker_extension_cls", "rllm_verl.vllm_worker.RllmWorker"
"""vLLM's argument for the class that extends its workers, and its value."""


def worker_environment(settings: VerlConfig) -> dict[str, str]:
    """Return the environment variables of all processes and of the driver
    (``ray_kwargs.ray_init.runtime_env.env_vars``)."""
    runtime = settings.ray_kwargs["ray_init"].get("runtime_env") or {}
    return {str(name): str(value) for name, value in (runtime.get("env_vars") or {}).items()}


def native_config(settings: VerlConfig, model: Model, total_steps: int, needs: frozenset[str] = frozenset()) -> Any:
    """Return the configuration for verl's classes, a DictConfig. `needs` is the same as in `RunContext`.

    Raises:
        ConfigError: the model cannot be trained with these settings.
    """
    from omegaconf import OmegaConf

    config: Any = OmegaConf.create(settings.native())
    check_packing(model.type, model.layer_types, config)
    resolve_fused_kernels(
        config, model_type=model.type, softcap=model.softcap, vocabulary=model.vocabulary, needs=needs
    )
    role = config.actor_rollout_ref
    role.model.path = model.path
    if model.adapter is not None:
        _start_from_adapter(model.adapter, role, needs)
    max_model_len = role.rollout.max_model_len
    role.rollout.max_model_len = min(max_model_len or _longest_row(role), model.max_context)
    if role.rollout.name == VLLM:
        options = role.rollout.engine_kwargs.get(VLLM) or {}
        OmegaConf.update(role.rollout, f"engine_kwargs.{VLLM}", {WORKER_KEY: WORKER, **options}, force_add=True)
    role.ref.strategy = role.actor.strategy
    contents = role.actor.checkpoint
    contents.load_contents = RESUMED
    if role.actor.strategy == SHARDED_BY_US:
        # For a LoRA model, verl would write adapters with the names of a whole model.
        others = [] if role.model.lora_rank else contents.save_contents
        contents.save_contents = [each for each in others if each not in RESUMED]
    optimizer = role.actor.optim
    optimizer.total_training_steps = total_steps
    # rllm computes the learning rate and passes it to every step, so verl's own schedule must stay constant.
    optimizer.lr_warmup_steps, optimizer.lr_warmup_steps_ratio = 0, 0.0
    if role.actor.strategy == "megatron":
        del optimizer.lr_scheduler_type  # Megatron's options have a different name for it
    else:
        optimizer.lr_scheduler_type = "constant"
    return config


def _start_from_adapter(adapter: Adapter, role: Any, needs: frozenset[str]) -> None:
    if "ref_logprobs" in needs:
        raise ConfigError(
            "adapter-needs-merge",
            f"actor_rollout_ref.model.path is the LoRA adapter {adapter.directory}. A LoRA run's reference is the "
            "model without its adapter, which is not the run's starting model.",
            "Export it with `rllm export … --to merged` and set actor_rollout_ref.model.path to that directory, or set "
            "rllm.algorithm.kl_beta=0.",
        )
    role.model.lora_adapter_path = str(adapter.directory.resolve())
    role.model.lora_rank, role.model.lora_alpha = adapter.rank, adapter.alpha
    role.model.target_modules = adapter.targets
    if role.rollout.name == CPU_SERVER or role.rollout.nnodes:
        role.model.lora.merge = True  # these servers accept only merged weights


def _longest_row(role: Any) -> int:
    """Return the number of tokens that fits every training pass. With longer rows the run would fail later."""
    actor, passes = role.actor, [(role.actor.use_dynamic_bsz, role.actor.ppo_max_token_len_per_gpu)]
    passes += [
        (each.log_prob_use_dynamic_bsz, each.log_prob_max_token_len_per_gpu) for each in (role.rollout, role.ref)
    ]
    split = sequence_parallel_size(actor)
    return min((tokens * split for by_tokens, tokens in passes if by_tokens), default=sys.maxsize)


def worker_config(native: Any) -> Any:
    """Return verl's section ``actor_rollout_ref`` for the training workers."""
    role = native.actor_rollout_ref
    if not is_disaggregated(native):
        return role
    from omegaconf import OmegaConf

    # verl requires that the number of workers is divisible by the servers' size, although they share no GPUs.
    return OmegaConf.merge(role, {"rollout": {"tensor_model_parallel_size": 1}})


def needs_reference_worker(run: RunContext, native: Any) -> bool:
    """Return True if the run needs a frozen copy of the model. LoRA needs none: its reference is the base model."""
    return "ref_logprobs" in run.needs and not native.actor_rollout_ref.model.lora_rank


def update_settings(run: RunContext, native: Any) -> UpdateSettings:
    """Return the run's settings for updates."""
    from rllm_verl.update import UpdateSettings

    actor = native.actor_rollout_ref.actor
    optimizer = run.backend_config.actor_rollout_ref["actor"]["optim"]
    return UpdateSettings(
        learning_rate=optimizer["lr"],
        lr_schedule=optimizer["lr_scheduler_type"],
        warmup_steps_ratio=optimizer["lr_warmup_steps_ratio"],
        num_epochs=actor.ppo_epochs,
        num_minibatches=run.backend_config.training.num_minibatches,
        temperature=run.config.sampling.train.temperature,
        micro_batching=_micro_batching(
            actor.use_dynamic_bsz, actor.ppo_micro_batch_size_per_gpu, actor.ppo_max_token_len_per_gpu, actor
        ),
        max_grad_norm=None if optimizer.get("clip_grad") is None else float(optimizer["clip_grad"]),
        use_kl_loss=bool(actor.use_kl_loss),
        calculate_entropy=bool(actor.calculate_entropy),
    )


def column_settings(run: RunContext, native: Any) -> ColumnSettings:
    """Return the run's settings for columns."""
    from rllm_verl.columns import ColumnSettings, reference_worker, without_adapter

    actor, rollout, reference = (native.actor_rollout_ref[name] for name in ("actor", "rollout", "ref"))
    of_actor, of_reference = (
        _micro_batching(
            each.log_prob_use_dynamic_bsz,
            each.log_prob_micro_batch_size_per_gpu,
            each.log_prob_max_token_len_per_gpu,
            actor,
        )
        for each in (rollout, reference)
    )
    strategy = reference_worker if needs_reference_worker(run, native) else without_adapter
    return ColumnSettings(
        temperature=run.config.sampling.train.temperature,
        recompute_old_logprobs=run.recomputes_old_logprobs,
        micro_batching=of_actor,
        reference=strategy if "ref_logprobs" in run.needs else None,
        reference_micro_batching=of_reference if strategy is reference_worker else None,
    )


def _micro_batching(by_tokens: bool, rows: int | None, tokens: int, actor: Any) -> MicroBatching:
    from rllm_verl.rows import MicroBatching

    if not by_tokens:
        return MicroBatching(rows=rows or 1)
    return MicroBatching(max_tokens=tokens * sequence_parallel_size(actor))
