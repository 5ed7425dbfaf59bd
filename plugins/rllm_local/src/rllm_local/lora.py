"""LoRA: two small trained matrices for each linear layer of a frozen model.

A layer's output gets alpha / rank · B A x added. The adapter is always float32, with any computation type of the model.
The engine and the trainer run the same layers, so their log-probs agree as well as without an adapter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rllm_core.errors import ConfigError
from rllm_core.seeding import derive_seed
from rllm_local.adapter_files import CONFIG, WEIGHTS, AdapterBase, write_base
from rllm_local.settings import TrainedModelSection
from rllm_local.weights import fingerprint, is_adapters, plain_name

ADAPTER = "default"
"""peft's name for a model's only adapter."""
INSIDE_PEFT = "base_model.model."
"""Prefix of names in peft's files."""


class Adapter:
    """A model's adapter. It is created in place: the model's linear layers become peft layers."""

    def __init__(self, model: Any, settings: TrainedModelSection, base: AdapterBase, seed: int) -> None:
        """Add an adapter that does not change the output yet: B is 0, and A is drawn from the seed.

        Args:
            model: `transformers.PreTrainedModel` on its device, in its computation type.
            settings: rank, alpha and layers.
            base: description of `model`.
            seed: seed for A.

        Raises:
            ConfigError: `model.lora_target_modules` matches no layer, or a layer that cannot have an adapter.
        """
        import peft

        self.model = model
        self._base = base
        self._sha256: str | None = None
        model.requires_grad_(False)
        _check_targets(model, settings)
        target = settings.lora_target_modules
        self.config = peft.LoraConfig(
            task_type="CAUSAL_LM",
            r=settings.lora_rank,
            lora_alpha=settings.lora_alpha,
            lora_dropout=0.0,
            target_modules=target if isinstance(target, str) else list(target),
            base_model_name_or_path=base.name,
            inference_mode=False,
        )
        try:
            # peft always draws from torch's global generator, with any setting for initial weights.
            with torch.random.fork_rng(devices=[]):
                peft.inject_adapter_in_model(self.config, model, ADAPTER)
        except ValueError as error:
            raise _target_error(settings, " ".join(str(error).split())[:200].rstrip(".")) from error
        self.layers = {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}
        self.config.target_modules = _targets(model, self.layers)
        for name, layer in self.layers.items():
            initialize_layer(layer, name, seed)

    @property
    def base(self) -> AdapterBase:
        """The base model, with the SHA-256 of its weights in their computation type."""
        if self._sha256 is None:
            self._sha256 = fingerprint(self.model, self.model.dtype)
        return replace(self._base, dtype=str(self.model.dtype).removeprefix("torch."), sha256=self._sha256)

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """Make the model compute the base model's outputs in this context."""
        for layer in self.layers.values():
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in self.layers.values():
                layer.enable_adapters(True)

    @contextmanager
    def applied_twice(self) -> Iterator[None]:
        """Make the model compute its outputs with twice the adapter's change of each layer in this context."""
        for layer in self.layers.values():
            layer.scaling[ADAPTER] *= 2
        try:
            yield
        finally:
            for layer in self.layers.values():
                layer.scaling[ADAPTER] /= 2

    def state_dict(self) -> dict[str, Tensor]:
        """Return each layer's A, (rank, n_in), and B, (n_out, rank), float32, by peft's names. They share memory."""
        return {
            f"{INSIDE_PEFT}{name}.{part}.weight": getattr(layer, part)[ADAPTER].weight.detach()
            for name, layer in self.layers.items()
            for part in ("lora_A", "lora_B")
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the values of `state_dict`. Raise ValueError if they belong to a different adapter."""
        own = self.state_dict()
        shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
        if shapes != {name: tuple(tensor.shape) for name, tensor in state.items()}:
            raise ValueError("layers or ranks differ")
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def save(self, directory: Path) -> None:
        """Write the adapter into a directory for `peft.PeftModel.from_pretrained`."""
        directory.mkdir(exist_ok=True)
        self.config.save_pretrained(directory)
        save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, directory / WEIGHTS)
        write_base(directory, self.base)

    def load(self, directory: Path) -> None:
        """Load an adapter that `save` or peft wrote. Raise ValueError if it is a different adapter."""
        scale = json.loads((directory / CONFIG).read_text(encoding="utf-8")).get("lora_alpha")
        if scale != self.config.lora_alpha:
            raise ValueError(f"lora_alpha is {scale}")
        self.load_state_dict(load_file(directory / WEIGHTS))

    @torch.no_grad()
    def merged_state(self) -> dict[str, Tensor]:
        """Return all tensors of a plain model with the same outputs, by their names in that model.

        Sums are computed in float32 and rounded to the layer's type. Layers without an adapter share the model's
        memory.
        """
        merged = {}
        for name, tensor in self.model.state_dict().items():
            if is_adapters(name):
                continue
            layer = self.layers.get(name.removesuffix(".base_layer.weight"))
            if layer is not None:
                change = layer.get_delta_weight(ADAPTER)
                tensor = (tensor.float() + change).to(tensor.dtype)
            merged[plain_name(name)] = tensor
        return merged


def initialize_layer(layer: Any, name: str, seed: int) -> None:
    """Set B of a peft layer to 0. Draw A from a seed for its name, so that it does not depend on the other layers."""
    down, up = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
    drawn = torch.empty(down.shape)
    generator = torch.Generator().manual_seed(derive_seed(seed, "lora", name))
    nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)
    down.data = drawn.to(down.device)
    up.data = torch.zeros(up.shape, device=up.device)


def merge_into(model: Any, directory: Path) -> Any:
    """Merge the adapter in a peft directory into a float32 model, and return the plain model. `model` is changed.

    If an adapted output layer shares its weights with the embedding (as with the Tinker API), the output layer gets its
    own weights. Otherwise the adapter would also change the embedding.
    """
    import peft

    output = next(name for name, module in model.named_modules() if module is model.get_output_embeddings())
    with safe_open(directory / WEIGHTS, "pt") as file:
        adapted = any(f".{output}.lora_" in name for name in file.keys())  # noqa: SIM118  (no mapping)
    if adapted and model.config.get_text_config().tie_word_embeddings:
        _untie(model)
    return peft.PeftModel.from_pretrained(model, str(directory)).merge_and_unload().eval().requires_grad_(True)


def _untie(model: Any) -> None:
    layer = model.get_output_embeddings()
    layer.weight = nn.Parameter(layer.weight.detach().clone())
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False
    model.all_tied_weights_keys = {}  # the tied weights that transformers recorded when it created the model


def _check_targets(model: Any, settings: TrainedModelSection) -> None:
    """Raise ConfigError for targets that are the output layer or not linear.

    The output layer often shares its weights with the embedding, and log-probs are computed from its plain weight.
    """
    targets = settings.lora_target_modules
    for target in () if isinstance(targets, str) else targets:
        for name, module in model.named_modules():
            if f".{name}".endswith(f".{target}"):
                if not isinstance(module, nn.Linear):
                    raise _target_error(settings, f"{name} is not a linear layer")
                if module is model.get_output_embeddings():
                    raise _target_error(settings, f"{name} is the output layer")


def _targets(model: Any, layers: Mapping[str, Any]) -> list[str]:
    """Return the ends of the adapted layers' names, or their whole names if other layers have the same ends."""
    ends = {name.rpartition(".")[2] for name in layers}
    alike = (name for name, module in model.named_modules() if name.rpartition(".")[2] in ends)
    return sorted(ends if set(alike) == set(layers) else layers)


def _target_error(settings: TrainedModelSection, why: str) -> ConfigError:
    return ConfigError(
        "bad-lora-target",
        f"model.lora_target_modules={settings.lora_target_modules!r} cannot be adapted: {why}.",
        "Set it to all-linear, or to the ends of linear layers' names, for example [q_proj, v_proj].",
    )
