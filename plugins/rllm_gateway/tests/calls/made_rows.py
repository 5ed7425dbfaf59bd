"""Rows of a store, with what a test does not say filled in."""

from __future__ import annotations

from typing import Any

import numpy as np

from rllm_gateway.calls import CallRow, EndRow, RewardRow, SessionRow


def session(id: str = "s", **fields: Any) -> SessionRow:
    given = {"run": "demo", "rollout": "t:0", "retry": 0, "metadata": {}, "key_hash": f"hash of {id}", "opened": 100.0}
    return SessionRow(id=id, **(given | fields))


def call(id: str = "c", session: str = "s", new: int = 3, sampled: int = 2, **fields: Any) -> CallRow:
    """A call of `new` tokens of prompt and `sampled` sampled ones."""
    given: dict[str, Any] = {
        "role": "agent",
        "parent": None,
        "prompt_digest": "d0",
        "new_ids": np.arange(new, dtype=np.int32),
        "response_ids": np.arange(100, 100 + sampled, dtype=np.int32),
        "logprobs": np.full(sampled, -0.5, np.float32),
        "weight_version": 3,
        "finish_reason": "stop",
        "started": 1.7e9,
        "seconds": 0.25,
        "parameters": {"temperature": 1.0, "max_tokens": 200},
        "messages": [{"role": "user", "content": "lower?"}],
        "response": {"role": "assistant", "content": "7"},
        "sent": {"model": "any", "temperature": 0.2},
        "outcomes": {"temperature": "overruled"},
    }
    return CallRow(id=id, session=session, **(given | fields))


def reward(value: float = 1.0, session: str = "s", role: str = "agent", at: float = 101.0) -> RewardRow:
    return RewardRow(session=session, role=role, value=value, at=at)


def end(session: str = "s", ending: str = "env_done", at: float = 102.0) -> EndRow:
    return EndRow(session=session, ending=ending, at=at)
