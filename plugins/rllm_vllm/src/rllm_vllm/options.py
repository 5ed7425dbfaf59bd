"""Options of the engine `vllm`. Context, concurrency and memory for the cache are settings of the backend."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from rllm_core.contracts.params import Params

OURS = frozenset(
    {
        "model",
        "tokenizer",
        "skip_tokenizer_init",
        "generation_config",
        "load_format",
        "dtype",
        "max_model_len",
        "max_num_seqs",
        "kv_cache_memory_bytes",
        "tensor_parallel_size",
        "enforce_eager",
        "logprobs_mode",
        "worker_extension_cls",
        "disable_log_stats",
    }
)
"""Arguments of vLLM that this package sets itself, so that `engine_args` must not contain them."""

Seconds = Annotated[float, Field(gt=0)]


class VllmOptions(Params):
    tensor_parallel_size: int = Field(1, gt=0)
    """Number of GPUs over which each layer of the model is split."""
    enforce_eager: bool = False
    """Do not compile the model or capture CUDA graphs. vLLM then starts faster but samples more slowly. Always true on
    a CPU."""
    threads: int = Field(1, gt=0)
    """Number of CPU threads of each vLLM process."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """More arguments of vLLM's `AsyncEngineArgs`, such as `quantization`."""
    start_timeout: Seconds = 600.0
    """Time limit for the start of vLLM, in seconds."""
    generate_timeout: Seconds = 600.0
    """Time limit for a response, in seconds."""
    load_timeout: Seconds = 600.0
    """Time limit for loading new weights, in seconds."""

    @field_validator("engine_args")
    @classmethod
    def _check_not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(OURS & value.keys())
        if taken:
            raise ValueError(
                f"{', '.join(taken)} cannot be set in engine_args; use the engine's options and the backend's settings"
            )
        return value
