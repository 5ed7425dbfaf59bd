"""Options of the built-in agents and workflows. They are in a separate file, so that listing plugins stays cheap."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from rllm_core.contracts.params import Params
from rllm_core.schema.section import Names, OptionRole

ControlTokensInText = Literal["keep", "plain", "error"]


class RendererParams(Params):
    """Options of the renderers ``template``, ``auto`` and ``renderers``."""

    control_tokens: ControlTokensInText = "keep"
    """Treatment of the model's control tokens in the text of a prompt, such as `<|im_end|>`. `keep`: they keep their
    meaning, as in transformers. `plain`: they are plain text. `error`: the prompt is an error. Tool results and all
    messages after the first response are plain text."""


class TemplateParams(RendererParams):
    """Options of the renderers ``template`` and ``auto``."""

    date: datetime.date | None = None
    """Date that the chat template writes into prompts, such as `2026-12-01`. null: the current date. With a date,
    `auto` uses the chat template."""


class MathAgentParams(Params):
    """Options of ``math_agent``."""

    system_prompt: str | None = None
    """System message before the first observation. null means none."""


class AgentWorkflowParams(Params):
    """Options of workflows with one agent and one environment."""

    agent_cls: Annotated[str | None, Names("agent", options="agent_args")] = None
    """Name of the agent. null means `rllm.agent.name`."""
    agent_args: dict[str, Any] = Field(default_factory=dict)
    """Options of the agent in `agent_cls`."""
    env_cls: Annotated[str | None, Names("environment", options="env_args")] = None
    """Name of the environment. null means `rllm.env.name`."""
    env_args: dict[str, Any] = Field(default_factory=dict)
    """Options of the environment in `env_cls`."""
    timeout: Annotated[float, OptionRole.ROLLOUT_SECONDS] = Field(1e6, gt=0)
    """Maximum seconds of a rollout, unless `rllm.agent.trajectory_timeout` is shorter."""
    gamma: Annotated[float, OptionRole.SHAPES_STEP_REWARDS] = Field(0.0, ge=0, le=1)
    """If above 0, a step's reward becomes the discounted sum of this and all later rewards."""
    reward_bonus_coeff: Annotated[float, OptionRole.SHAPES_STEP_REWARDS] = Field(0.0, ge=0)
    """Weight of a bonus for each step: its reward minus the previous step's reward."""
