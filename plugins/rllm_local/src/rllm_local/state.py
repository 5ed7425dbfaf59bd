"""What a checkpoint holds of the backend: the model as a Hugging Face folder, the rest as safetensors.

The folder holds the float32 masters, whatever type the model computes in, so that a resumed run goes on exactly. Its
config.json names the type that the model computes in. With LoRA it is the adapter alone, as peft writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
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
    """Write into an existing empty folder. ``folder/model`` can be given to `--model`, to transformers or to peft."""
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
    """Put weights and optimiser back exactly.

    Raises:
        CheckpointError: the folder holds another model, weights that are not float32, or no critic where there is one
            to load.
    """
    if critic is not None and not (directory / CRITIC).exists():
        raise CheckpointError(
            "checkpoint-lacks-state",
            f"{directory} holds no critic, and an estimator of this run needs its values.",
            "Resume with the estimators the run was started with, or start a new run from this checkpoint's model.",
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
            # torch keeps the step counter on the CPU unless the optimiser is fused.
            optimizer.state[parameter] = state | {"step": state["step"].cpu()}


def _load_model(directory: Path, masters: Masters) -> None:
    from transformers import AutoModelForCausalLM

    if adapter_directory(str(directory / MODEL)) is not None:
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} holds a LoRA adapter, and this run trains all weights.",
            "Resume with the model.lora_rank the run was started with.",
        )
    _check_float32(directory)
    saved = AutoModelForCausalLM.from_pretrained(directory / MODEL, dtype=torch.float32)
    try:
        masters.load(saved.state_dict())
    except RuntimeError as error:
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} holds another model than the one this run trains.",
            "Resume with the model.name the run was started with.",
        ) from error


def _load_adapter(directory: Path, adapter: Adapter) -> None:
    if not (directory / MODEL / CONFIG).exists():
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} holds a whole model, and this run trains a LoRA adapter.",
            "Resume with the model.lora_rank the run was started with.",
        )
    base = read_base(directory / MODEL)
    if (base.dtype, base.sha256) != (adapter.base.dtype, adapter.base.sha256):
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} holds a LoRA adapter of other weights than those that model.name and model.dtype stand for.",
            f"Put the model back that was at {base.name!r}, or start a new run.",
        )
    try:
        adapter.load(directory / MODEL)
    except ValueError as error:
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} holds another LoRA adapter than the one this run trains: {error}.",
            "Resume with the keys model.lora_… the run was started with.",
        ) from error


def _check_float32(directory: Path) -> None:
    for path in sorted((directory / MODEL).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            types = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118  (the file is no mapping)
        if rough := sorted(types & {"BF16", "F16"}):
            raise CheckpointError(
                "checkpoint-too-old",
                f"{directory} holds weights of type {rough[0]}, which an earlier version of rllm-local trained without "
                "float32 masters; most of its small updates were lost.",
                "Start a new run with model.name set to this checkpoint.",
            )


def _trained(masters: Masters, critic: Critic | None) -> Iterator[tuple[str, torch.nn.Parameter]]:
    yield from masters.named()
    if critic is not None:
        yield from critic.named_parameters(prefix="critic")
