"""Options of the workflow `tool_calling` and the environment `trl`, so that listing plugins imports nothing else."""

from __future__ import annotations

from pydantic import Field

from rllm.builtin.tasks.options import QuestionParams
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


class TrlEnvironmentParams(QuestionParams):
    """Options of ``trl``."""

    factory: str = Field(
        min_length=1,
        description="Class for TRL's `environment_factory`, as FILE.py:CLASS. Its public methods are the tools.",
    )
