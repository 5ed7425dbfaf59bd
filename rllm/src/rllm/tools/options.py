"""Options of the workflow `tool_calling`. Apart from what plays, so that listing plugins stays cheap."""

from __future__ import annotations

from pydantic import Field

from rllm_core.rollout.options import AgentWorkflowParams


class ToolCallingParams(AgentWorkflowParams):
    """Options of ``tool_calling``."""

    tools: list[str] = Field(
        default_factory=list,
        description="Functions that the model may call, each FILE.py:FUNCTION; beside those of the environment.",
    )
    tool_timeout: float = Field(
        30.0, gt=0, description="Seconds one call may take; the model is told of a call that takes longer."
    )
