"""Options of the stage `echo`, in a separate module so that listing plugins does not import numpy."""

from __future__ import annotations

from pydantic import Field

from rllm_core.contracts.plugin import Params


class EchoParams(Params):
    """Options of the stage ``echo``."""

    weight: float = Field(0.1, gt=0, description="Factor of the mean of -log p over the observation tokens.")
    roles: tuple[str, ...] = Field(
        ("user", "tool"),
        min_length=1,
        description="Roles of the messages to predict. The tokens between two responses are trained if all messages "
        "between them have such a role.",
    )
