"""Options of the engine `vllm`. Context, concurrency and memory for the cache are settings of the backend."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from rllm_core.contracts.plugin import Params

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
"""Arguments of vLLM that this package sets itself."""

Seconds = Annotated[float, Field(gt=0)]


class VllmOptions(Params):
    tensor_parallel_size: int = Field(1, gt=0, description="GPUs that share the model.")
    enforce_eager: bool = Field(
        False,
        description="Neither compile nor capture CUDA graphs: a quick start, slower sampling. Always so on a CPU.",
    )
    threads: int = Field(1, gt=0, description="CPU threads of each of vLLM's processes.")
    engine_args: dict[str, Any] = Field(
        default_factory=dict, description="Further arguments of vLLM's `AsyncEngineArgs`, such as `quantization`."
    )
    start_timeout: Seconds = Field(600.0, description="Seconds until a start that is not done is given up.")
    generate_timeout: Seconds = Field(600.0, description="Seconds until a reply that is not done is given up.")
    load_timeout: Seconds = Field(600.0, description="Seconds until a change of weights that is not done is given up.")

    @field_validator("engine_args")
    @classmethod
    def _not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(OURS & value.keys())
        if taken:
            raise ValueError(
                f"{', '.join(taken)} cannot be set here: options of the engine and settings of the backend decide it"
            )
        return value
