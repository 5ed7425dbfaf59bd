"""A rollout server's settings and responses as plain data, so that its process need not import verl.

Importing verl takes several seconds of CPU time. A response becomes verl's `TokenOutput` in the process that receives
it, which has already imported verl.
"""

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


StopReason = Literal["completed", "aborted"]


@dataclass(frozen=True)
class Response:
    """The response to one prompt. It is unpickled as a `verl.workers.rollout.replica.TokenOutput`."""

    token_ids: list[int]
    log_probs: list[float] | None
    """Log-probs under softmax(logits / temperature), before top-p and top-k. None if the request was rejected."""
    stop_reason: StopReason
    weight_version: int
    """verl's ``global_steps``: the oldest weight version that sampled a token of the response."""
    prompt_logprobs: list[list[float]] | None = None
    """The log-probs of the prompt's tokens but the first, and a placeholder, if they were requested."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return token_output, (
            self.token_ids,
            self.log_probs,
            self.stop_reason,
            self.weight_version,
            self.prompt_logprobs,
        )


def token_output(
    token_ids: list[int],
    log_probs: list[float] | None,
    stop_reason: StopReason,
    weight_version: int,
    prompt_logprobs: list[list[float]] | None,
) -> Any:
    """Return verl's object for a response."""
    from verl.workers.rollout.replica import TokenOutput

    return TokenOutput(
        token_ids=token_ids,
        log_probs=log_probs,
        stop_reason=stop_reason,
        num_preempted=0,
        extra_fields={"global_steps": weight_version, "prompt_logprobs": prompt_logprobs},
    )
