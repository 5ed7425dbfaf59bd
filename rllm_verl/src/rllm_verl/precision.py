"""In which dtype FSDP keeps the weights that the optimiser moves."""

from __future__ import annotations

from typing import Any

from rllm_core.notices import warn_once
from rllm_verl.attention import FSDP
from rllm_verl.shared_keys import ACTOR

MODEL_DTYPE = f"{ACTOR}.fsdp_config.model_dtype"
FLOAT32 = frozenset({"fp32", "float32"})


def warn_of_weights_below_float32(native: dict[str, Any]) -> None:
    """AdamW moves the weights in the dtype that FSDP keeps them in; verl's default is float32."""
    actor = native["actor_rollout_ref"]["actor"]
    if actor["strategy"] in FSDP and (dtype := actor["fsdp_config"]["model_dtype"]) not in FLOAT32:
        warn_once(
            f"`{MODEL_DTYPE}` is {dtype}: AdamW keeps weights and moments in it, and most updates of a small learning "
            "rate round to nothing. Leave it out for float32; FSDP computes in bfloat16 anyway."
        )
