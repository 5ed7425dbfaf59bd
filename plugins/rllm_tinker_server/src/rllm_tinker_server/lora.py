"""LoRA models: peft adapters over one shared base model, which never changes.

Every LoRA model has a separate module tree over the base model's tensors (see `copy_modules`). So the base model stays
a plain transformers model, and adapters cannot affect or slow down each other.
"""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

import peft
import torch
from torch import Tensor, nn

from rllm_core.contracts.weight_comparison import KnownFault
from rllm_local.lora import ADAPTER, initialize_layer
from rllm_tinker_server.messages import LoraSpec, RequestError

T = TypeVar("T")


def copy_modules(model: Any) -> Any:
    """Copy all modules of a model (and its config), and none of its parameters and buffers.

    Ties survive: two modules that share a parameter in `model` share the same one in the copy.
    """
    tensors = (*model.parameters(), *model.buffers())
    # What deepcopy finds in its memo it takes for copied already.
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


ATTENTION = ("attn", "attention")
"""Suffixes of the module names around attention projections: ``self_attn``, ``attn``, ``self_attention``, …"""
ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})
"""Linear layers that choose between experts. They get no adapter, as on the service."""


def target_names(model: Any, spec: LoraSpec) -> tuple[str, ...]:
    """Names of the linear layers that `spec` adapts, in the model's order.

    Raises:
        RequestError: it adapts nothing, or something that this model does not have as linear layers.
    """
    flags = {"train_attn": spec.train_attn, "train_mlp": spec.train_mlp, "train_unembed": spec.train_unembed}
    if not any(flags.values()):
        raise RequestError(
            "train_mlp, train_attn and train_unembed are all false: nothing would be trained. Set at least one to true."
        )
    groups: dict[str, list[str]] = {"train_attn": [], "train_mlp": [], "train_unembed": []}
    unembedding = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            group = "train_unembed" if module is unembedding else _group(name)
            if group is not None:
                groups[group].append(name)
    if spec.train_mlp and any(parameter.ndim > 2 for parameter in model.parameters()):
        raise RequestError(
            "This model's experts are not linear layers, and only linear layers can be adapted. Set train_mlp=False."
        )
    for group, is_set in flags.items():
        if is_set and not groups[group]:
            raise RequestError(f"{group} is true and this model has no linear layer of that kind. Set {group}=False.")
    chosen = {name for group, is_set in flags.items() if is_set for name in groups[group]}
    return tuple(name for name, _ in model.named_modules() if name in chosen)


def _group(name: str) -> str | None:
    """The flag that speaks for a linear layer, by what it is in; None for one outside of the repeated layers."""
    *path, leaf = name.split(".")
    if leaf in ROUTERS or not any(part.isdigit() for part in path):
        return None
    return "train_attn" if any(word in part for part in path for word in ATTENTION) else "train_mlp"


ALPHA = 32
"""Scale of adapters: a layer's output changes by alpha / rank · B A x. All ranks have the same alpha, so that one
learning rate works for all of them: Schulman et al. 2025, "LoRA Without Regret"."""
MAX_RANK = 1024
"""Far above useful ranks. The limit prevents a mistaken rank from using the server's memory."""


@dataclass(frozen=True, eq=False)
class Factors:
    """The adapter of one linear layer, float32."""

    down: Tensor
    """(rank, n_in), called A."""
    up: Tensor
    """(n_out, rank), called B."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AdapterWeights:
    """A constant copy of an adapter in main memory. It is equal only to itself."""

    spec: LoraSpec
    factors: Mapping[str, Factors]
    """Factors by the name of the linear layer in the base model."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """A and B of each layer, by the names of `LoraModel.parameters`."""
        return _name_factors({name: (each.down, each.up) for name, each in self.factors.items()})


def _name_factors(factors: Mapping[str, tuple[T, T]]) -> dict[str, T]:
    named = {}
    for name, (down, up) in factors.items():
        named[f"{name}.lora_A.weight"] = down
        named[f"{name}.lora_B.weight"] = up
    return named


class LoraModel:
    """A base model with an adapter that can be trained."""

    def __init__(self, base: Any, spec: LoraSpec) -> None:
        """Make a LoRA model with the base model's outputs: B is 0, and A is drawn from the seed.

        Args:
            base: `transformers.PreTrainedModel`, which does not change.
            spec: LoRA settings. If the seed is None, a seed is drawn and stored in `self.spec`.

        Raises:
            RequestError: the rank or the choice of layers is invalid.
        """
        if not 1 <= spec.rank <= MAX_RANK:
            raise RequestError(f"A LoRA rank of {spec.rank} is not offered here. Choose a rank from 1 to {MAX_RANK}.")
        self.spec = replace(spec, seed=secrets.randbits(63) if spec.seed is None else spec.seed)
        self.names = target_names(base, spec)
        self.model = copy_modules(base)
        # Untie layers here, because an adapter on the output layer must not change the input embedding. Otherwise peft
        # warns about merging such an adapter into the tied weight, which this server does not do.
        self.model.config.tie_word_embeddings = False
        # peft always draws from torch's global generator, with any setting of initial weights.
        with torch.random.fork_rng(devices=[]):
            peft.inject_adapter_in_model(peft_config(self.spec, self.names), self.model, ADAPTER)
        self._layers: dict[str, Any] = {name: self.model.get_submodule(name) for name in self.names}
        for name, layer in self._layers.items():
            initialize_layer(layer, name, self.spec.seed or 0)

    def _weights(self) -> dict[str, tuple[nn.Parameter, nn.Parameter]]:
        """A and B of each layer."""
        return {
            name: (layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight) for name, layer in self._layers.items()
        }

    def parameters(self) -> dict[str, nn.Parameter]:
        """The adapter's, by names such as ``model.layers.0.mlp.up_proj.lora_A.weight``."""
        return _name_factors(self._weights())

    def weights(self) -> AdapterWeights:
        """Return a copy of the adapter in main memory."""
        factors = {name: Factors(_copy(down), _copy(up)) for name, (down, up) in self._weights().items()}
        return AdapterWeights(spec=self.spec, factors=MappingProxyType(factors))


def peft_config(spec: LoraSpec, names: tuple[str, ...]) -> peft.LoraConfig:
    """Return peft's config that adapts exactly the layers with these names."""
    return peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=spec.rank,
        lora_alpha=ALPHA,
        lora_dropout=0.0,
        # As a pattern: of a list, each entry would also match longer names that end with it.
        target_modules="|".join(re.escape(name) for name in names),
    )


@torch.no_grad()
def merged_copy(base: Any, weights: AdapterWeights) -> Any:
    """Return a plain model with the adapted model's outputs. It shares all tensors with `base` except adapted weights.

    The adapted weights are float32 with any type of the base model. bfloat16 would lose most of the change from few or
    small steps, because a weight changes by at least 1/256 of its value.
    """
    merged = copy_modules(base)
    for name in weights.factors:
        layer = merged.get_submodule(name)
        merged.set_submodule(name, _MergedLinear(_merge(layer, name, weights), layer.bias))
    return merged


def _merge(layer: nn.Linear, name: str, weights: AdapterWeights) -> Tensor:
    """Return the weight of an adapted layer, (n_out, n_in) float32."""
    factors, device = weights.factors[name], layer.weight.device
    change = factors.up.to(device) @ factors.down.to(device) * (ALPHA / weights.spec.rank)
    return layer.weight.float() + change


@torch.no_grad()
def different_tensors(
    merged: Any, base: Any, sent: AdapterWeights | None, trained: AdapterWeights
) -> dict[str, str | None]:
    """Return the names of a sampler's tensors that differ from the trained weights.

    The adapter's tensors are compared first, because they explain different merged weights.

    Args:
        merged: model that samples.
        base: base model.
        sent: adapter of the sampler. None means the base model.
        trained: adapter that the sampler should have.

    Returns:
        Each tensor's `TensorDifference.values_of`, by name.
    """
    own, right = {} if sent is None else sent.tensors, trained.tensors
    different = [name for name, tensor in right.items() if name not in own or not torch.equal(own[name], tensor)]
    if different:
        owners = {_values(tensor): name for name, tensor in reversed(right.items())}
        return {
            name: (owners.get(_values(own[name])) or _find_rounding(own[name], right[name], name))
            if name in own
            else None
            for name in different
        }
    found: dict[str, str | None] = {}
    for name, parameter in merged.named_parameters(remove_duplicate=False):
        layer, _, kind = name.rpartition(".")
        is_adapted = kind == "weight" and layer in trained.factors
        expected = _merge(base.get_submodule(layer), layer, trained) if is_adapted else base.get_parameter(name)
        if parameter is not expected and not torch.equal(parameter.float(), expected.float()):
            found[name] = _find_rounding(parameter, expected, name)
    return found


def _find_rounding(own: Tensor, right: Tensor, name: str) -> str | None:
    """Return a description of the right tensor's values in a type with fewer bits, if `own` has them."""
    return next(
        (
            f"{name} rounded to {str(dtype).removeprefix('torch.')}"
            for dtype in ROUNDED.values()
            if torch.equal(own.float(), right.to(dtype).float())
        ),
        None,
    )


def _values(tensor: Tensor) -> tuple[torch.Size, bytes]:
    return tensor.shape, tensor.numpy().tobytes()


ROUNDED = {KnownFault.BFLOAT16: torch.bfloat16, KnownFault.FLOAT16: torch.float16}


@torch.no_grad()
def faulty_copies(base: Any, weights: AdapterWeights) -> Iterator[tuple[KnownFault, Any]]:
    """Yield models as `merged_copy` would return them with a fault, one after the other to need less memory."""
    twice = {name: replace(each, up=2 * each.up) for name, each in weights.factors.items()}
    yield KnownFault.ADAPTER_TWICE, merged_copy(base, replace(weights, factors=twice))
    for fault, dtype in ROUNDED.items():
        rounded = merged_copy(base, weights)
        for name in weights.factors:
            weight = rounded.get_submodule(name).weight
            weight.copy_(weight.to(dtype))
        yield fault, rounded


class _MergedLinear(nn.Linear):
    """A linear layer that computes in the type of its weight, and answers in the type it is given."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: (n_out, n_in); bias: (n_out,)."""
        super().__init__(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        self.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            self.bias = nn.Parameter(bias.to(weight.dtype), requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.to(self.weight.dtype)).to(input.dtype)


def _copy(parameter: nn.Parameter) -> Tensor:
    return parameter.detach().to("cpu", copy=True)
