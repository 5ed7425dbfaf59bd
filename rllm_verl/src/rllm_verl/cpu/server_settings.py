"""A rollout server's settings as plain data, so that its process need not import verl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from rllm_core.errors import ConfigError

Dtype = Literal["float32", "bfloat16", "float16"]
KV_CACHE_BYTES = 2 << 30


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """One rollout server."""

    model: str
    """A Hugging Face directory or hub id."""
    dtype: Dtype = "float32"
    max_context: int
    """Maximum number of tokens in a prompt and its response. The model may support fewer."""
    max_concurrency: int
    """Maximum number of responses in one forward pass."""
    kv_cache_bytes: int = KV_CACHE_BYTES


def server_settings(rollout: Any, model_path: str) -> ServerSettings:
    """Return a server's settings from verl's `RolloutConfig`.

    Raises:
        ConfigError: the server does not support a setting.
    """
    _check(rollout)
    return ServerSettings(
        model=model_path,
        dtype=rollout.dtype,
        max_context=rollout.max_model_len or rollout.prompt_length + rollout.response_length,
        max_concurrency=rollout.max_num_seqs,
    )


def _check(rollout: Any) -> None:
    key = "actor_rollout_ref.rollout"
    if (size := rollout.tensor_model_parallel_size) != 1:
        raise ConfigError(
            "unsupported-parallelism",
            f"{key}.tensor_model_parallel_size={size}, but each rollout server for CPUs has a whole model.",
            f"Set {key}.tensor_model_parallel_size=1. Each worker has its own server.",
        )
    if rollout.dtype not in get_args(Dtype):
        raise ConfigError(
            "bad-value",
            f"{key}.dtype={rollout.dtype!r} is not a supported type.",
            f"Set {key}.dtype to one of {', '.join(get_args(Dtype))}.",
        )
