"""What a saved LoRA model is on disk: a folder that peft can load, with a record of what it is and the optimiser.

- ``adapter_model.safetensors`` and ``adapter_config.json``: the adapter as peft writes it.
- ``optimizer.safetensors``: AdamW's state, ``<parameter>/<step | exp_avg | exp_avg_sq>``; not in folders for sampling.
- ``model.json``: the base model, the `LoraSpec`, and the version of this format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rllm_tinker.server.lora import AdapterWeights, Factors, LoraModel, peft_config
from rllm_tinker.server.messages import LoraSpec, RequestRefused

FORMAT = 1
RECORD = "model.json"
ADAPTER = "adapter_model.safetensors"
OPTIMIZER = "optimizer.safetensors"
PREFIX = "base_model.model."
"""What peft's files put before the names of a model's parameters."""


@dataclass(frozen=True, eq=False)
class SavedModel:
    """What a folder holds."""

    spec: LoraSpec
    adapter: Mapping[str, Tensor]
    """By the names of `LoraModel.parameters`."""
    optimizer: Mapping[str, Tensor] | None
    """By parameter and key; None where none was saved."""

    @property
    def weights(self) -> AdapterWeights:
        names = [name.removesuffix(".lora_A.weight") for name in self.adapter if name.endswith(".lora_A.weight")]
        factors = {
            name: Factors(self.adapter[f"{name}.lora_A.weight"], self.adapter[f"{name}.lora_B.weight"])
            for name in names
        }
        return AdapterWeights(spec=self.spec, factors=MappingProxyType(factors))


def write(folder: Path, base_name: str, lora: LoraModel, optimizer: Mapping[str, Tensor] | None) -> None:
    """Write into an existing empty folder.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    adapter = {f"{PREFIX}{name}": parameter.detach() for name, parameter in lora.parameters().items()}
    _save(adapter, folder / ADAPTER)
    config = peft_config(lora.spec, lora.names)
    config.base_model_name_or_path = base_name
    config.inference_mode = True
    config.save_pretrained(str(folder))
    if optimizer is not None:
        _save(optimizer, folder / OPTIMIZER)
    # Last, so that a folder that has it is complete.
    record = {"format": FORMAT, "base_model": base_name, "lora": asdict(lora.spec)}
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read(folder: Path, base_name: str) -> SavedModel:
    """What `write` wrote, on the CPU.

    Raises:
        RequestRefused: the folder is damaged, of another format, or of another base model.
    """
    record = _record(folder)
    if record.get("format") != FORMAT:
        raise RequestRefused(f"{folder.name} is of format {record.get('format')}; this server reads format {FORMAT}.")
    if record.get("base_model") != base_name:
        raise RequestRefused(
            f"{folder.name} is an adapter of the model {record.get('base_model')!r}, and this server has "
            f"{base_name!r}. Start the server with that model."
        )
    try:
        spec = LoraSpec(**record["lora"])
    except (KeyError, TypeError) as error:
        raise _damaged(folder, RECORD, error) from error
    adapter = {name.removeprefix(PREFIX): tensor for name, tensor in _load(folder / ADAPTER).items()}
    optimizer = _load(folder / OPTIMIZER) if (folder / OPTIMIZER).exists() else None
    return SavedModel(spec, adapter, optimizer)


def check_fits(saved: SavedModel, lora: LoraModel, what: str) -> None:
    """Let a saved adapter pass that has exactly the parameters of `lora`.

    Raises:
        RequestRefused: it has others, or of other shapes.
    """
    needed = {name: tuple(parameter.shape) for name, parameter in lora.parameters().items()}
    found = {name: tuple(tensor.shape) for name, tensor in saved.adapter.items()}
    for name in sorted(needed.keys() | found.keys()):
        if needed.get(name) != found.get(name):
            raise RequestRefused(
                f"{what} does not fit this LoRA model: {name} is {found.get(name, 'missing')} there, and "
                f"{needed.get(name, 'missing')} here. Load it into a model of its rank ({saved.spec.rank}), with the "
                "same train_mlp, train_attn and train_unembed."
            )


def _record(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RequestRefused(f"{folder.name} holds no saved model, or only a part of one: no {RECORD}.") from error
    except ValueError as error:
        raise _damaged(folder, RECORD, error) from error
    if not isinstance(record, dict):
        raise _damaged(folder, RECORD, TypeError("not an object"))
    return record


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(path))
    except (SafetensorError, FileNotFoundError) as error:
        raise _damaged(path.parent, path.name, error) from error


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(f"{path.name} cannot be written: {error}") from error


def _damaged(folder: Path, file: str, why: Exception) -> RequestRefused:
    return RequestRefused(f"{folder.name} is damaged: its {file} cannot be read ({why}). Use another checkpoint.")
