"""Options of the workflow `tool_calling`, in a separate module so that listing plugins stays fast."""

from __future__ import annotations

from pydantic import Field

from rllm_core.rollout.options import AgentWorkflowParams


class ToolCallingParams(AgentWorkflowParams):
    """Options of ``tool_calling``."""

    tools: list[str] = Field(
        default_factory=list,
        description="Functions that the model may call, each FILE.py:FUNCTION, in addition to the environment's tools.",
    )
    tool_timeout: float = Field(
        30.0, gt=0, description="Maximum number of seconds for one call. The model gets an error if a call exceeds it."
    )
