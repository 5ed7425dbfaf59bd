"""A hook of vLLM's CPU build: keep the weights of linear layers as they are loaded.

That build repacks them for its kernels and drops the originals, so that weights could be loaded once only. vLLM calls
`register` (entry point ``vllm.general_plugins``) in each of its processes, whoever started them; it does something in
ours alone, which are told apart by a variable of the environment. Others may replace the same function: doing so twice
is the same as once.
"""

from __future__ import annotations

import os
from typing import Any

SWITCH = "RLLM_VLLM_RELOADABLE"
"""Set in the processes that this package starts."""


def register() -> None:
    """Replace the function that repacks, in a process of ours on a CPU."""
    if os.environ.get(SWITCH) != "1":
        return
    from vllm.model_executor.layers import utils
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        utils.dispatch_cpu_unquantized_gemm = keep_as_loaded


def keep_as_loaded(layer: Any, remove_weight: bool) -> None:
    """Stands for vLLM's function: the layer multiplies by its weight, wherever that was loaded from."""
    from torch.nn.functional import linear

    layer.cpu_linear = linear
