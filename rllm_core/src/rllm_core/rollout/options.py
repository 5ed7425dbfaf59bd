"""Options of the built-in agents and workflows. Apart from what plays, so that looking at plugins stays cheap."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rllm_core.contracts.plugin import Params
from rllm_core.schema.section import Means, Names


class MathAgentParams(Params):
    """Options of ``math_agent``."""

    system_prompt: str | None = Field(None, description="System message before the first observation; null means none.")


class AgentWorkflowParams(Params):
    """Options of workflows in which one agent plays with one environment."""

    agent_cls: Annotated[str | None, Names("agent", options="agent_args")] = Field(
        None, description="Agent, by name; null means `rllm.agent.name`."
    )
    agent_args: dict[str, Any] = Field(default_factory=dict, description="Options of the agent that `agent_cls` names.")
    env_cls: Annotated[str | None, Names("environment", options="env_args")] = Field(
        None, description="Environment, by name; null means `rllm.env.name`."
    )
    env_args: dict[str, Any] = Field(
        default_factory=dict, description="Options of the environment that `env_cls` names."
    )
    timeout: Annotated[float, Means.ROLLOUT_SECONDS] = Field(
        1e6, gt=0, description="Seconds an attempt may take, unless `rllm.agent.trajectory_timeout` is shorter."
    )
    gamma: Annotated[float, Means.SHAPES_STEP_REWARDS] = Field(
        0.0, ge=0, le=1, description="Above 0, a step's reward becomes the discounted sum of its own and later ones."
    )
    reward_bonus_coeff: Annotated[float, Means.SHAPES_STEP_REWARDS] = Field(
        0.0, ge=0, description="What a step gains on the step before it is added to its reward, times this."
    )
