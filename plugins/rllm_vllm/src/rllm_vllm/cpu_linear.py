"""A hook for vLLM's CPU build that keeps the weights of linear layers in their original layout.

The CPU build repacks weights for its kernels and drops the originals, so weights could be loaded only once. vLLM calls
`register` (entry point ``vllm.general_plugins``) in each of its processes. The hook has an effect only in processes
that this package starts, which have an environment variable. Another package may replace the same function. It does no
harm if it is replaced twice.
"""

from __future__ import annotations

import os
from typing import Any

SWITCH = "RLLM_VLLM_RELOADABLE"
"""Environment variable that is set in the processes that this package starts."""


def register() -> None:
    """Replace the function that repacks weights, in a process of this package on a CPU."""
    if os.environ.get(SWITCH) != "1":
        return
    from vllm.model_executor.layers import utils
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        utils.dispatch_cpu_unquantized_gemm = keep_as_loaded


def keep_as_loaded(layer: Any, remove_weight: bool) -> None:
    """Replace vLLM's function. The layer multiplies by its current weight, so weights can be loaded again."""
    from torch.nn.functional import linear

    layer.cpu_linear = linear
