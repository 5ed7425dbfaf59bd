"""`build_train_config`: the configuration of a run as an OmegaConf object, to be changed further and given back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllm.config.choices import chosen_backend, registry_for
from rllm.config.compose import compose
from rllm.config.layers import Layer, layer_from_file, layer_from_keys, layers_from_overrides
from rllm.planning.planner import make_plan
from rllm_core.errors import ConfigError, hide_tracebacks

if TYPE_CHECKING:
    from omegaconf import DictConfig


@hide_tracebacks()
def build_train_config(
    model_name: str | None = None,
    group_size: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    lora_rank: int | None = None,
    total_epochs: int | None = None,
    total_steps: int | None = None,
    val_freq: int | None = None,
    save_freq: int | None = None,
    project: str | None = None,
    experiment: str | None = None,
    output_dir: str | None = None,
    config_file: str | Path | None = None,
    *,
    backend: str | None = None,
    environment: str | None = None,
    overrides: Iterable[str] = (),
) -> DictConfig:
    """Compose a complete, validated configuration, as ``rllm train`` would for the same choices.

    An argument of None does not change a value. You can change the result with ``OmegaConf.merge`` and pass it to
    `AgentTrainer`. Values that you do not change there do not count as set by you.

    Args:
        model_name: the backend's model key (``model.name`` for most).
        group_size: ``rllm.rollout.n``, rollouts per task.
        batch_size: ``data.train_batch_size``, tasks per step.
        lr: the backend's learning rate (``training.learning_rate`` for most).
        lora_rank: the backend's LoRA rank (``model.lora_rank`` for most).
        total_epochs: ``rllm.trainer.total_epochs``.
        total_steps: ``rllm.trainer.total_batches``.
        val_freq: ``rllm.trainer.test_freq``, steps between validations.
        save_freq: ``rllm.trainer.save_freq``, steps between checkpoints.
        project: ``rllm.trainer.project_name``.
        experiment: ``rllm.trainer.experiment_name``.
        output_dir: ``rllm.trainer.output_dir``.
        config_file: a YAML file. The other arguments win over its values.
        backend: ``rllm.backend``.
        environment: ``rllm.env.name``. Its defaults and its recipe for the model are applied.
        overrides: additional ``key=value`` overrides, as on the command line.

    Raises:
        ConfigError: a key, value or name is wrong, or a value given would have no effect.
    """
    files = [] if config_file is None else [layer_from_file(config_file)]
    if isinstance(overrides, str):
        raise ConfigError(
            "bad-override", f"overrides is the text {overrides!r}.", f"Give a list: overrides=[{overrides!r}]."
        )
    words = layers_from_overrides(overrides)
    named: dict[str, Any] = {"rllm.backend": backend, "rllm.env.name": environment}
    arguments = _layer(named)
    registry = registry_for([*files, *words])
    record = chosen_backend(registry, [*files, arguments, *words])
    named = {
        record.model_key: model_name,
        record.learning_rate_key: lr,
        record.lora_rank_key: lora_rank,
        "rllm.rollout.n": group_size,
        "data.train_batch_size": batch_size,
        "rllm.trainer.total_epochs": total_epochs,
        "rllm.trainer.total_batches": total_steps,
        "rllm.trainer.test_freq": val_freq,
        "rllm.trainer.save_freq": save_freq,
        "rllm.trainer.project_name": project,
        "rllm.trainer.experiment_name": experiment,
        "rllm.trainer.output_dir": output_dir,
    }
    plan = make_plan(compose(registry, [*files, arguments, _layer(named), *words]), registry)
    from omegaconf import OmegaConf

    config: DictConfig = OmegaConf.create(plan.composed.build_saved_config())
    return config


def _layer(values: dict[str, Any]) -> Layer:
    return layer_from_keys({key: value for key, value in values.items() if value is not None}, "build_train_config")
