"""The plugin that vLLM loads at its start (entry point ``vllm.general_plugins``). It lets verl update weights on a CPU.

On a CPU, vLLM repacks each linear layer's weight after the first load and deletes the original. verl's next update then
has no weight to write to. Without the repacking, a layer computes with the original weight.
"""

from __future__ import annotations

from typing import Any

from rllm_verl.cpu.register import is_cpu_requested


def register() -> None:
    """Switch off the repacking of linear layers if verl runs on a CPU."""
    if not is_cpu_requested():
        return
    import torch
    from vllm.model_executor.layers import utils

    def keep(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = keep
