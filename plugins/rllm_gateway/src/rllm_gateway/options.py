"""Options of the workflow `agent`. Apart from what plays, so that listing plugins stays cheap."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rllm_core.contracts.plugin import Params
from rllm_core.schema.section import AttemptSeconds


class AgentParams(Params):
    """Options of ``agent``."""

    agent: str | None = Field(
        None, description="Function that attempts a task: FILE.py:FUNCTION or MODULE:FUNCTION, plain or async."
    )
    command: list[str] | None = Field(
        None, min_length=1, description="Program that attempts a task, and its arguments, in place of a function."
    )
    preload: list[str] = Field(
        default_factory=list,
        description="Modules that a Python program in `command` imports, such as [litellm]. One process imports them "
        "once, and each rollout is a fork of it.",
    )
    timeout: Annotated[float, AttemptSeconds()] = Field(
        3600.0, gt=0, description="Seconds an attempt may take, unless `rllm.agent.trajectory_timeout` is shorter."
    )
    unsupported: Literal["refuse", "ignore"] = Field(
        "refuse",
        description="What becomes of request parameters that nothing acts on: a 400, or counted as ignored.",
    )
