"""Which linear layers of a causal language model an adapter goes into, told from the model's structure."""

from __future__ import annotations

from typing import Any

from torch import nn

from rllm_tinker_server.messages import LoraSpec, RequestRefused

ATTENTION = ("attn", "attention")
"""What the module around a layer's projections is called: ``self_attn``, ``attn``, ``self_attention``, …"""
ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})
"""Linear layers that choose between experts. What they choose is no matter of the adapter, as on the service."""


def target_names(model: Any, spec: LoraSpec) -> tuple[str, ...]:
    """Names of the linear layers that `spec` adapts, in the model's order.

    Raises:
        RequestRefused: it adapts nothing, or something that this model does not have as linear layers.
    """
    wanted = {"train_attn": spec.train_attn, "train_mlp": spec.train_mlp, "train_unembed": spec.train_unembed}
    if not any(wanted.values()):
        raise RequestRefused(
            "train_mlp, train_attn and train_unembed are all false: nothing would be trained. Set one of them."
        )
    groups: dict[str, list[str]] = {"train_attn": [], "train_mlp": [], "train_unembed": []}
    unembedding = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            group = "train_unembed" if module is unembedding else _group(name)
            if group is not None:
                groups[group].append(name)
    if spec.train_mlp and _has_fused_experts(model):
        raise RequestRefused(
            "The experts of this model are not linear layers, and this server adapts those alone. Set train_mlp=False."
        )
    for group, asked in wanted.items():
        if asked and not groups[group]:
            raise RequestRefused(f"{group} is true and this model has no linear layer of that kind. Set {group}=False.")
    chosen = {name for group, asked in wanted.items() if asked for name in groups[group]}
    return tuple(name for name, _ in model.named_modules() if name in chosen)


def _group(name: str) -> str | None:
    """The flag that speaks for a linear layer, by what it is in; None for one outside of the repeated layers."""
    *path, leaf = name.split(".")
    if leaf in ROUTERS or not any(part.isdigit() for part in path):
        return None
    return "train_attn" if any(word in part for part in path for word in ATTENTION) else "train_mlp"


def _has_fused_experts(model: Any) -> bool:
    """Whether the weights of several experts are one tensor, (n_expert, …)."""
    return any(parameter.ndim > 2 for parameter in model.parameters())
