"""What a checkpoint holds of the backend: the model as a Hugging Face folder, the rest as safetensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rllm_core.errors import CheckpointError
from rllm_local.critic import Critic

MODEL = "model"
CRITIC = "critic.safetensors"
OPTIMIZER = "optimizer.safetensors"


def save_state(
    folder: Path, model: Any, tokenizer: Any, optimizer: torch.optim.Optimizer, critic: Critic | None = None
) -> None:
    """Write into an existing empty folder. ``folder/model`` can be given to `--model` or to transformers."""
    model.save_pretrained(folder / MODEL)
    tokenizer.save_pretrained(folder / MODEL)
    if critic is not None:
        save_file(critic.state_dict(), folder / CRITIC)
    tensors = {
        f"{name}/{key}": value.contiguous()
        for name, parameter in _trained(model, critic)
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    save_file(tensors, folder / OPTIMIZER)


def load_state(folder: Path, model: Any, optimizer: torch.optim.Optimizer, critic: Critic | None = None) -> None:
    """Put weights and optimiser back exactly.

    Raises:
        CheckpointError: the folder holds another model, or no critic where there is one to load.
    """
    from transformers import AutoModelForCausalLM

    if critic is not None and not (folder / CRITIC).exists():
        raise CheckpointError(
            f"{folder} holds no critic, and an estimator of this run needs its values.",
            "Resume with the estimators the run was started with, or start a new run from this checkpoint's model.",
        )
    saved = AutoModelForCausalLM.from_pretrained(folder / MODEL, dtype=model.dtype)
    try:
        model.load_state_dict(saved.state_dict())
    except RuntimeError as error:
        raise CheckpointError(
            f"{folder} holds another model than the one this run trains.",
            "Resume with the model.name the run was started with.",
        ) from error
    if critic is not None:
        critic.load_state_dict(load_file(folder / CRITIC, device=str(model.device)))
    tensors = load_file(folder / OPTIMIZER, device=str(model.device))
    optimizer.state.clear()
    for name, parameter in _trained(model, critic):
        state = {
            key: tensors[f"{name}/{key}"] for key in ("step", "exp_avg", "exp_avg_sq") if f"{name}/{key}" in tensors
        }
        if state:
            # torch keeps the step counter on the CPU unless the optimiser is fused.
            optimizer.state[parameter] = state | {"step": state["step"].cpu()}


def _trained(model: Any, critic: Critic | None) -> Iterator[tuple[str, torch.nn.Parameter]]:
    yield from model.named_parameters()
    if critic is not None:
        yield from critic.named_parameters(prefix="critic")
