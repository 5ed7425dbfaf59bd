"""What vLLM loads at its start (entry point ``vllm.general_plugins``): weights that can be loaded again on a CPU.

On a CPU, vLLM packs the weight of every linear layer into a form of its own after the first load and throws the
original away: verl's next update finds no weight to write to. Without packing a layer computes with the original.
"""

from __future__ import annotations

from typing import Any

from rllm_verl.cpu.register import wanted


def register() -> None:
    """Keep the weights of linear layers as they are, where verl runs on the CPU."""
    if not wanted():
        return
    import torch
    from vllm.model_executor.layers import utils

    def keep(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = keep
