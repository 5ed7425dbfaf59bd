"""LoRA: two small trained matrices beside each linear layer of a model that stays as it is.

What is added to a layer's output is alpha / rank · B A x. The adapter is float32 whatever the model computes in. The
engine and the trainer run the same layers, so their log-probs agree as they do without an adapter.
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
from rllm_local.adapter_files import CONFIG, WEIGHTS, BaseModel, write_base
from rllm_local.fingerprints import fingerprint, is_adapters, plain_name
from rllm_local.settings import TrainedModelSection

ADAPTER = "default"
"""peft's name of the one adapter of a model."""
INSIDE_PEFT = "base_model.model."
"""How names begin in a file of peft."""


class Adapter:
    """The adapter of a model. Made in place: the model's linear layers become peft's."""

    def __init__(self, model: Any, settings: TrainedModelSection, base: BaseModel, seed: int) -> None:
        """Add an adapter that changes nothing yet: B is 0, and A is drawn from the seed.

        Args:
            model: `transformers.PreTrainedModel` on its device, in the type that it computes in.
            settings: rank, alpha and layers.
            base: what `model` is.
            seed: of A.

        Raises:
            ConfigError: `model.lora_target_modules` names no layers, or layers that cannot have an adapter.
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
            # peft draws from torch's global generator whatever it is told about initial weights.
            with torch.random.fork_rng(devices=[]):
                peft.inject_adapter_in_model(self.config, model, ADAPTER)
        except ValueError as error:
            raise _refusal(settings, " ".join(str(error).split())[:200].rstrip(".")) from error
        self.layers = {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}
        self.config.target_modules = _targets(model, self.layers)
        for name, layer in self.layers.items():
            self._start(name, layer, seed)

    def _start(self, name: str, layer: Any, seed: int) -> None:
        """Draw A of each layer from a seed of its own: a layer starts alike whichever others are adapted."""
        down, up = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
        drawn = torch.empty(down.shape)
        generator = torch.Generator().manual_seed(derive_seed(seed, "lora", name))
        nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)
        down.data = drawn.to(down.device)
        up.data = torch.zeros(up.shape, device=up.device)

    @property
    def base(self) -> BaseModel:
        """What is below, with the SHA-256 of its weights as they compute."""
        if self._sha256 is None:
            self._sha256 = fingerprint(self.model, self.model.dtype)
        return replace(self._base, dtype=str(self.model.dtype).removeprefix("torch."), sha256=self._sha256)

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """The model answers as the base model does."""
        for layer in self.layers.values():
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in self.layers.values():
                layer.enable_adapters(True)

    def state_dict(self) -> dict[str, Tensor]:
        """A, (rank, n_in), and B, (n_out, rank), of each layer, float32, by peft's names. They share memory."""
        return {
            f"{INSIDE_PEFT}{name}.{part}.weight": getattr(layer, part)[ADAPTER].weight.detach()
            for name, layer in self.layers.items()
            for part in ("lora_A", "lora_B")
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state_dict` gave. Raises ValueError: it is of another adapter."""
        own = self.state_dict()
        shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
        if shapes != {name: tuple(tensor.shape) for name, tensor in state.items()}:
            raise ValueError("layers or ranks differ")
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def save(self, directory: Path) -> None:
        """Write the adapter into a folder that `peft.PeftModel.from_pretrained` opens."""
        directory.mkdir(exist_ok=True)
        self.config.save_pretrained(directory)
        save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, directory / WEIGHTS)
        write_base(directory, self.base)

    def load(self, directory: Path) -> None:
        """Put back what `save` wrote, or peft. Raises ValueError: it is of another adapter."""
        scale = json.loads((directory / CONFIG).read_text(encoding="utf-8")).get("lora_alpha")
        if scale != self.config.lora_alpha:
            raise ValueError(f"lora_alpha is {scale}")
        self.load_state_dict(load_file(directory / WEIGHTS))

    @torch.no_grad()
    def merged_state(self) -> dict[str, Tensor]:
        """All tensors of a plain model that answers as the adapted one does, by their names in it.

        Sums are made in float32 and rounded to the type of the layer; what has no adapter shares the model's memory.
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


def merge_into(model: Any, directory: Path) -> Any:
    """The plain model of a float32 model and the adapter in a folder of peft's. Changes `model`.

    An output layer that is the embedding too becomes one of its own where it is adapted, as by the Tinker API: merged
    into both, the adapter would change what the model reads.
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
    model.all_tied_weights_keys = {}  # what transformers found to be tied when it made the model


def _check_targets(model: Any, settings: TrainedModelSection) -> None:
    """The output layer is often the embedding too, and log-probs are computed from its plain weight."""
    targets = settings.lora_target_modules
    for target in () if isinstance(targets, str) else targets:
        for name, module in model.named_modules():
            if f".{name}".endswith(f".{target}"):
                if not isinstance(module, nn.Linear):
                    raise _refusal(settings, f"{name} is no linear layer")
                if module is model.get_output_embeddings():
                    raise _refusal(settings, f"{name} is the output layer")


def _targets(model: Any, layers: Mapping[str, Any]) -> list[str]:
    """The ends of the adapted layers' names, or whole names where other layers end alike."""
    ends = {name.rpartition(".")[2] for name in layers}
    alike = (name for name, module in model.named_modules() if name.rpartition(".")[2] in ends)
    return sorted(ends if set(alike) == set(layers) else layers)


def _refusal(settings: TrainedModelSection, why: str) -> ConfigError:
    return ConfigError(
        "bad-lora-target",
        f"model.lora_target_modules={settings.lora_target_modules!r} cannot be adapted: {why}.",
        "Use all-linear, or name linear layers by the ends of their names, such as [q_proj, v_proj].",
    )
