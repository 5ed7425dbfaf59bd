"""The columns of a record's files."""

from __future__ import annotations

from typing import Literal, get_args

import pyarrow as pa

Content = Literal["outcomes", "tokens"]
"""``outcomes``: ids, numbers and rules. ``tokens``: text, tokens and updates too."""
CONTENTS: tuple[Content, ...] = get_args(Content)
NUMBERS = pa.map_(pa.string(), pa.float64())
MESSAGE = pa.struct({"role": pa.string(), "text": pa.string(), "data": pa.string()})
"""`data` is the whole message as JSON. It is null if the message has only a role and text."""
VERSION_SPAN = pa.struct({"version": pa.int32(), "tokens": pa.int32()})
STEP = pa.struct(
    {
        "segment_start": pa.int32(),
        "prompt_start": pa.int32(),
        "response_start": pa.int32(),
        "end": pa.int32(),
        "weight_version": pa.int32(),
        "version_spans": pa.list_(VERSION_SPAN),
        "finish_reason": pa.string(),
        "reward": pa.float64(),
        "advantage": pa.string(),  # JSON
        "messages": pa.list_(MESSAGE),
        "text": pa.string(),
        "info": pa.string(),  # JSON
    }
)
TRAJECTORY = pa.struct(
    {
        "uid": pa.string(),
        "own_uid": pa.string(),
        "name": pa.string(),
        "reward_given": pa.float64(),
        "reward_used": pa.float64(),
        "reward": pa.float64(),
        "components": NUMBERS,
        "steps": pa.list_(STEP),
        "ids": pa.list_(pa.int32()),
        "logprobs": pa.list_(pa.float32()),
        "info": pa.string(),  # JSON
    }
)
EPISODES = pa.schema(
    {
        "uid": pa.string(),
        "step": pa.int32(),
        "batch": pa.int32(),
        "id": pa.string(),
        "task_id": pa.string(),
        "data_source": pa.string(),
        "is_correct": pa.bool_(),
        "termination_reason": pa.string(),
        "error": pa.string(),
        "tries": pa.int32(),
        "metrics": NUMBERS,
        "trajectories": pa.list_(TRAJECTORY),
        "task": pa.string(),  # JSON
    }
)
OUTCOMES = pa.schema(
    {
        "step": pa.int32(),
        "trajectory": pa.string(),
        "outcome": pa.string(),
        "rule": pa.string(),
        "numbers": NUMBERS,
        "group": pa.string(),
        "peers": pa.list_(pa.string()),
        "name": pa.string(),
        "episode": pa.string(),
        "rollout_step": pa.int32(),
        "batch": pa.int32(),
        "estimator": pa.string(),
        "baseline": pa.float64(),
        "advantage": pa.float64(),
    }
)
TOKEN_VALUES = (
    "advantage",
    "rollout_logprob",
    "old_logprob",
    "ref_logprob",
    "logprob",
    "entropy",
    "weight",
    "policy_part",
    "kl_part",
    "entropy_part",
)
"""float32 columns of `TRACES`, one entry per position."""
TRACES = pa.schema(
    {
        "trajectory": pa.string(),
        "segment": pa.int32(),
        "row": pa.int32(),
        "role": pa.string(),
        "rollout_step": pa.int32(),
        "epoch": pa.int32(),
        "optimizer_step": pa.int32(),
        "positions": pa.list_(pa.int32()),
        "ids": pa.list_(pa.int32()),
        **{name: pa.list_(pa.float32()) for name in TOKEN_VALUES},
        "clipped": pa.list_(pa.bool_()),
    }
)
UPDATES = pa.schema(
    {
        "epoch": pa.int32(),
        "optimizer_step": pa.int32(),
        "loss": pa.float64(),
        "policy_loss": pa.float64(),
        "kl_loss": pa.float64(),
        "entropy_loss": pa.float64(),
        "grad_norm": pa.float64(),
        "clip_factor": pa.float64(),
        "learning_rate": pa.float64(),
        "loss_seed": pa.int64(),
    }
)
VOCABULARY = pa.schema({"id": pa.int32(), "text": pa.string()})
ENCODINGS = {
    **dict.fromkeys(
        ("uid", "trajectories.list.element.uid", "trajectories.list.element.own_uid"),
        "DELTA_BYTE_ARRAY",
    ),
    **dict.fromkeys(("trajectory", "episode", "peers.list.element"), "DELTA_BYTE_ARRAY"),
    **dict.fromkeys(("row", "optimizer_step", "positions.list.element"), "DELTA_BINARY_PACKED"),
    **dict.fromkeys((f"{name}.list.element" for name in TOKEN_VALUES), "BYTE_STREAM_SPLIT"),
}
"""Path of a column in a file -> its Parquet encoding. The encodings make use of the common prefixes of uids, the
increasing positions, and the similar exponents of numbers."""
