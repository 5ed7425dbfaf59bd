"""Additional arguments for vLLM on a CPU."""

from __future__ import annotations

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
    asked = arguments.get("max_num_batched_tokens") or TOKENS_PER_PASS
    return {
        **arguments,
        "enforce_eager": True,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(asked, arguments["max_model_len"]),
    }
