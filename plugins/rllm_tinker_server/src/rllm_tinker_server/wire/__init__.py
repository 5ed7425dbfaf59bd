"""What clients send and get, protobuf and JSON, to and from `messages`. Nothing else of the server knows tinker.

Requests may hold keys that are not known here, as newer clients send them; settings of a known key may not.
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
