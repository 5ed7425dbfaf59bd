"""Options of the dataset `stored`. They are separate from the reader so that listing plugins stays cheap."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rllm_core.contracts.plugin import Params


class StoredParams(Params):
    """Options of the dataset ``stored``."""

    path: str = Field(
        min_length=1,
        description="Directory from `rllm gateway episodes`, run with `rllm.record=tokens`, or file of episodes.",
    )
    group_by: Literal["step", "task"] = Field(
        "step",
        description="Rollouts of a task to compare. `step`: rollouts from one step, so from one policy. `task`: "
        "rollouts from all steps.",
    )
    min_reward: float | None = Field(
        None, description="Smallest reward of a rollout to use. null: all rollouts, also those without a reward."
    )
