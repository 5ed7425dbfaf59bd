"""Conversion of requests and answers (protobuf and JSON) to and from `messages`. Only this package imports tinker.

Requests may contain unknown keys, because newer clients send them. Settings within a known key must be known.
"""

from rllm_tinker_server.wire.answers import (
    PROTOBUF,
    created,
    forward_backward_answer,
    json_answer,
    loaded,
    promise,
    samples_answer,
    sampling_session,
    saved,
    saved_external,
    saved_for_sampler,
    server_failure,
    stepped,
    unloaded,
    user_failure,
)
from rllm_tinker_server.wire.forward_backward import forward_backward_of, forward_backward_request
from rllm_tinker_server.wire.settings import adam_step, check_optimizer, lora_spec

__all__ = [
    "PROTOBUF",
    "adam_step",
    "check_optimizer",
    "created",
    "forward_backward_answer",
    "forward_backward_of",
    "forward_backward_request",
    "json_answer",
    "loaded",
    "lora_spec",
    "promise",
    "samples_answer",
    "sampling_session",
    "saved",
    "saved_external",
    "saved_for_sampler",
    "server_failure",
    "stepped",
    "unloaded",
    "user_failure",
]
