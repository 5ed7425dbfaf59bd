"""What vLLM is told on a CPU beside what it is told anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TOKENS_PER_PASS = 4096
"""Of prompts, where the context is shorter."""


def cpu_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``AsyncEngineArgs`` that work on a CPU.

    - No compiling: it takes 15 to 40 s there.
    - Prompts are not split over passes. Of a split one vLLM draws a token at every pass, and takes back the draw from
      the request's generator of random numbers. Those of a CPU cannot do that: the first such prompt ended the engine
      with "CPU Generator does not use offset". A pass then has to hold a whole context.

    Args:
        arguments: with ``max_model_len``. A number of tokens per pass that is too small for a context is raised.
    """
    asked = arguments.get("max_num_batched_tokens") or TOKENS_PER_PASS
    return {
        **arguments,
        "enforce_eager": True,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(asked, arguments["max_model_len"]),
    }
