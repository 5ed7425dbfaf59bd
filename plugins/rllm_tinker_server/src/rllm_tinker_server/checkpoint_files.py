"""Files of a saved LoRA model: a directory that peft can load, with a model description and the optimizer's state.

- ``adapter_model.safetensors`` and ``adapter_config.json``: the adapter in peft's format.
- ``optimizer.safetensors``: AdamW's state, ``<parameter>/<step | exp_avg | exp_avg_sq>``. Not saved for sampling.
- ``base.json``: the base model in the format of `rllm_local.adapter_files`, with the seed of the weights of `tiny`.
- ``model.json``: the base model's name and the fingerprint of its weights, the `LoraSpec`, and the version of this
  format. The name is only for people. The fingerprint decides if an adapter belongs to a model.
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

from rllm_local.adapter_files import WEIGHTS, AdapterBase, write_base
from rllm_local.lora import INSIDE_PEFT
from rllm_tinker_server.lora import AdapterWeights, Factors, LoraModel, peft_config
from rllm_tinker_server.messages import LoraSpec, RequestError

FORMAT = 2
RECORD_FILE = "model.json"
OPTIMIZER_FILE = "optimizer.safetensors"


@dataclass(frozen=True)
class BaseWeights:
    """The base model that an adapter belongs to."""

    name: str
    """Its name for clients at the time of the save."""
    sha256: str
    """Fingerprint of the weights, see `rllm_local.weights.fingerprint`."""
    seed: int
    """Seed of the weights of `tiny`."""
    dtype: str
    """Type of the weights in `sha256`."""


@dataclass(frozen=True, eq=False)
class SavedModel:
    """Content of a checkpoint's directory."""

    spec: LoraSpec
    adapter: Mapping[str, Tensor]
    """Tensors by their names in `LoraModel.parameters`."""
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


def write(directory: Path, base: BaseWeights, lora: LoraModel, optimizer: Mapping[str, Tensor] | None) -> None:
    """Write into an existing empty directory.

    Raises:
        OSError: the disk is full, or the directory cannot be written to.
    """
    adapter = {f"{INSIDE_PEFT}{name}": parameter.detach() for name, parameter in lora.parameters().items()}
    _save(adapter, directory / WEIGHTS)
    config = peft_config(lora.spec, lora.names)
    config.base_model_name_or_path = base.name
    config.inference_mode = True
    config.save_pretrained(str(directory))
    write_base(directory, AdapterBase(base.name, base.seed, base.dtype, base.sha256))
    if optimizer is not None:
        _save(optimizer, directory / OPTIMIZER_FILE)
    # Last, so that a directory that has it is complete.
    record = {"format": FORMAT, "base_model": {"name": base.name, "sha256": base.sha256}, "lora": asdict(lora.spec)}
    (directory / RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read(directory: Path, base: BaseWeights) -> SavedModel:
    """Read the files from `write`, onto the CPU.

    Raises:
        RequestError: the directory is damaged, has a different format, or belongs to a base model with other weights.
    """
    record = _record(directory)
    if record.get("format") != FORMAT:
        raise RequestError(f"{directory.name} has format {record.get('format')}. This server reads format {FORMAT}.")
    try:
        name, sha256 = record["base_model"]["name"], record["base_model"]["sha256"]
        spec = LoraSpec(**record["lora"])
    except (KeyError, TypeError) as error:
        raise _damage_error(directory, RECORD_FILE, error) from error
    if sha256 != base.sha256:
        raise RequestError(
            f"{directory.name} was trained on other weights of the base model ({name!r} then) than this "
            f"server's {base.name!r} has. Start the server with the same --dtype, and with the same --seed for the "
            "model tiny, or the same files in the model's directory for other models."
        )
    adapter = {name.removeprefix(INSIDE_PEFT): tensor for name, tensor in _load(directory / WEIGHTS).items()}
    optimizer = _load(directory / OPTIMIZER_FILE) if (directory / OPTIMIZER_FILE).exists() else None
    return SavedModel(spec, adapter, optimizer)


def check_fits(saved: SavedModel, lora: LoraModel, what: str) -> None:
    """Let a saved adapter pass that has exactly the parameters of `lora`.

    Raises:
        RequestError: it has others, or of other shapes.
    """
    needed = {name: tuple(parameter.shape) for name, parameter in lora.parameters().items()}
    found = {name: tuple(tensor.shape) for name, tensor in saved.adapter.items()}
    for name in sorted(needed.keys() | found.keys()):
        if needed.get(name) != found.get(name):
            raise RequestError(
                f"{what} does not fit this LoRA model: {name} is {found.get(name, 'missing')} there, and "
                f"{needed.get(name, 'missing')} here. Load it into a model of its rank ({saved.spec.rank}), with the "
                "same train_mlp, train_attn and train_unembed."
            )


def _record(directory: Path) -> dict[str, Any]:
    try:
        record = json.loads((directory / RECORD_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RequestError(
            f"{directory.name} contains no saved model, or only a part of one: no {RECORD_FILE}."
        ) from error
    except ValueError as error:
        raise _damage_error(directory, RECORD_FILE, error) from error
    if not isinstance(record, dict):
        raise _damage_error(directory, RECORD_FILE, TypeError("not an object"))
    return record


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(path))
    except (SafetensorError, FileNotFoundError) as error:
        raise _damage_error(path.parent, path.name, error) from error


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(f"{path.name} cannot be written: {error}") from error


def _damage_error(directory: Path, file: str, why: Exception) -> RequestError:
    return RequestError(f"{directory.name} is damaged: its {file} cannot be read ({why}). Use a different checkpoint.")
