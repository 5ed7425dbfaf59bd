"""What a checkpoint holds of the backend: the model as a Hugging Face folder, the optimiser as safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rllm_core.errors import CheckpointError

MODEL = "model"
OPTIMIZER = "optimizer.safetensors"


def save_state(folder: Path, model: Any, tokenizer: Any, optimizer: torch.optim.Optimizer) -> None:
    """Write into an existing empty folder. ``folder/model`` can be given to `--model` or to transformers."""
    model.save_pretrained(folder / MODEL)
    tokenizer.save_pretrained(folder / MODEL)
    tensors = {
        f"{name}/{key}": value.contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    save_file(tensors, folder / OPTIMIZER)


def load_state(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Put weights and optimiser back exactly.

    Raises:
        CheckpointError: the folder holds another model.
    """
    from transformers import AutoModelForCausalLM

    saved = AutoModelForCausalLM.from_pretrained(folder / MODEL, dtype=model.dtype)
    try:
        model.load_state_dict(saved.state_dict())
    except RuntimeError as error:
        raise CheckpointError(
            f"{folder} holds another model than the one this run trains.",
            "Resume with the model.name the run was started with.",
        ) from error
    tensors = load_file(folder / OPTIMIZER, device=str(model.device))
    optimizer.state.clear()
    for name, parameter in model.named_parameters():
        state = {
            key: tensors[f"{name}/{key}"] for key in ("step", "exp_avg", "exp_avg_sq") if f"{name}/{key}" in tensors
        }
        if state:
            # torch keeps the step counter on the CPU unless the optimiser is fused.
            optimizer.state[parameter] = state | {"step": state["step"].cpu()}
