"""Workflows, the agent, the renderer and the tracker of the core."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.agent import AgentPlugin
from rllm_core.contracts.renderer import RendererPlugin
from rllm_core.contracts.workflow import WorkflowPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins.specs import hookimpl
from rllm_core.rollout.options import AgentWorkflowParams, MathAgentParams, RendererParams


@hookimpl
def rllm_workflows() -> Iterable[WorkflowPlugin[Any]]:
    yield WorkflowPlugin(
        name="single_turn_workflow",
        summary="One prompt and one response.",
        params=AgentWorkflowParams,
        load=load_from("rllm_core.rollout.workflows", "SingleTurnWorkflow"),
        one_role=True,
        needs_environment=True,
        config_keys=frozenset({"rllm.agent.name", "rllm.agent.agent_args", "rllm.reward"}),
    )
    yield WorkflowPlugin(
        name="multi_turn_workflow",
        summary="Several turns with the environment until it is done.",
        params=AgentWorkflowParams,
        load=load_from("rllm_core.rollout.workflows", "MultiTurnWorkflow"),
        one_role=True,
        needs_environment=True,
        config_keys=frozenset(
            {
                "rllm.accumulate_reasoning",
                "rllm.agent.name",
                "rllm.agent.agent_args",
                "rllm.agent.max_steps",
                "rllm.reward",
            }
        ),
    )


@hookimpl
def rllm_agents() -> Iterable[AgentPlugin[Any]]:
    yield AgentPlugin(
        name="math_agent",
        summary="Plain chat: the model's whole response is the action. The default.",
        params=MathAgentParams,
        load=load_from("rllm_core.rollout.agents", "MathAgent"),
    )


@hookimpl
def rllm_renderers() -> Iterable[RendererPlugin[Any]]:
    yield RendererPlugin(
        name="template",
        summary="The chat template of the model's tokenizer. The default.",
        params=RendererParams,
        load=load_from("rllm_core.rollout.template_renderer", "template_renderer"),
    )
