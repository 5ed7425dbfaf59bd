"""The backend's part of a checkpoint: the model as a Hugging Face directory, and the rest as safetensors.

The directory contains the float32 masters for any computation type, so that a resumed run continues exactly. Its
config.json contains the computation type. With LoRA, the directory contains only the adapter, in peft's format.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rllm_core.errors import CheckpointError
from rllm_local.adapter_files import CONFIG, adapter_directory, read_base
from rllm_local.critic import Critic
from rllm_local.lora import Adapter
from rllm_local.masters import Masters

MODEL = "model"
CRITIC = "critic.safetensors"
OPTIMIZER = "optimizer.safetensors"


def save_state(
    directory: Path,
    masters: Masters,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    critic: Critic | None = None,
    adapter: Adapter | None = None,
) -> None:
    """Write the state into an empty directory. `--model`, transformers and peft can load ``directory/model``."""
    if adapter is None:
        masters.model.save_pretrained(directory / MODEL, state_dict=masters.state_dict())
    else:
        adapter.save(directory / MODEL)
    tokenizer.save_pretrained(directory / MODEL)
    if critic is not None:
        save_file(critic.state_dict(), directory / CRITIC)
    tensors = {
        f"{name}/{key}": value.contiguous()
        for name, parameter in _trained(masters, critic)
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    save_file(tensors, directory / OPTIMIZER)


def load_state(
    directory: Path,
    masters: Masters,
    optimizer: torch.optim.Optimizer,
    critic: Critic | None = None,
    adapter: Adapter | None = None,
) -> None:
    """Restore weights and optimizer exactly.

    Raises:
        CheckpointError: the directory contains a different model or weights that are not float32, or it lacks a critic
            that the run needs.
    """
    if critic is not None and not (directory / CRITIC).exists():
        raise CheckpointError(
            "checkpoint-lacks-state",
            f"{directory} contains no critic, but an estimator of this run needs its values.",
            "Resume with the same estimators as before, or start a new run from this checkpoint's model.",
        )
    if adapter is None:
        _load_model(directory, masters)
    else:
        _load_adapter(directory, adapter)
    device = str(masters.model.device)
    if critic is not None:
        critic.load_state_dict(load_file(directory / CRITIC, device=device))
    tensors = load_file(directory / OPTIMIZER, device=device)
    optimizer.state.clear()
    for name, parameter in _trained(masters, critic):
        state = {
            key: tensors[f"{name}/{key}"] for key in ("step", "exp_avg", "exp_avg_sq") if f"{name}/{key}" in tensors
        }
        if state:
            # torch stores the step counter on the CPU unless the optimizer is fused.
            optimizer.state[parameter] = state | {"step": state["step"].cpu()}


def _load_model(directory: Path, masters: Masters) -> None:
    from transformers import AutoModelForCausalLM

    if adapter_directory(str(directory / MODEL)) is not None:
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} contains a LoRA adapter, but this run trains all weights.",
            "Resume with the same model.lora_rank with which you started the run.",
        )
    saved = AutoModelForCausalLM.from_pretrained(directory / MODEL, dtype=torch.float32)
    try:
        masters.load(saved.state_dict())
    except RuntimeError as error:
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} contains a different model than this run trains.",
            "Resume with the same model.name with which you started the run.",
        ) from error


def _load_adapter(directory: Path, adapter: Adapter) -> None:
    if not (directory / MODEL / CONFIG).exists():
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} contains a whole model, but this run trains a LoRA adapter.",
            "Resume with the same model.lora_rank with which you started the run.",
        )
    base = read_base(directory / MODEL)
    if (base.dtype, base.sha256) != (adapter.base.dtype, adapter.base.sha256):
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} contains a LoRA adapter for a different model or dtype than model.name and model.dtype.",
            f"Restore the model that was at {base.name!r}, or start a new run.",
        )
    try:
        adapter.load(directory / MODEL)
    except ValueError as error:
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} contains a different LoRA adapter than this run trains: {error}.",
            "Resume with the same model.lora_… keys with which you started the run.",
        ) from error


def _trained(masters: Masters, critic: Critic | None) -> Iterator[tuple[str, torch.nn.Parameter]]:
    yield from masters.named()
    if critic is not None:
        yield from critic.named_parameters(prefix="critic")
