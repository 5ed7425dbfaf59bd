"""Changes of vLLM's CPU build: its arguments, and weights that can be loaded again.

The CPU build repacks the weights of linear layers for its kernels and drops the originals, so weights could be loaded
only once. vLLM calls `register` (entry point ``vllm.general_plugins``) in each of its processes, which keeps the
original layout. It has an effect only in processes that this package starts, which have an environment variable.
Another package may replace the same function. It does no harm if it is replaced twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

TOKENS_PER_PASS = 4096
"""Default number of tokens per pass if the context is shorter."""


def cpu_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of ``AsyncEngineArgs`` that work on a CPU.

    - The model is not compiled, because this takes 15 to 40 s on a CPU.
    - Prompts are not split over several passes. With a split prompt, vLLM draws a token at every pass and then rewinds
      the request's random generator. A CPU generator cannot rewind: vLLM fails with "CPU Generator does not use
      offset". So a pass must be large enough for a whole context.

    Args:
        arguments: arguments with ``max_model_len``. If the number of tokens per pass is smaller than a context, it is
            increased.
    """
    tokens = arguments.get("max_num_batched_tokens") or TOKENS_PER_PASS
    return {
        **arguments,
        "enforce_eager": True,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(tokens, arguments["max_model_len"]),
    }


SWITCH = "RLLM_VLLM_RELOADABLE"
"""Environment variable that is set in the processes that this package starts."""


def register() -> None:
    """Replace the function that repacks weights, in a process of this package on a CPU."""
    if os.environ.get(SWITCH) != "1":
        return
    from vllm.model_executor.layers import utils
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        utils.dispatch_cpu_unquantized_gemm = keep_layout


def keep_layout(layer: Any, remove_weight: bool) -> None:
    """Replace vLLM's function. The layer multiplies by its current weight, so weights can be loaded again."""
    from torch.nn.functional import linear

    layer.cpu_linear = linear
