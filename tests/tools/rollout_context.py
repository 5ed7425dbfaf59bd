"""The context of a rollout, for tests that run a workflow by hand."""

from __future__ import annotations

from typing import Any

from rllm_core.contracts.engine import SamplingParams
from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.rollout.options import MathAgentParams
from rllm_core.rollout.workflows import MathAgent


def context_of(engine: Any, **changes: Any) -> WorkflowContext:
    """Return a context with this engine, up to 4 turns and no environment. Keywords change its fields.

    There are 200 tokens for a prompt, and 40 for a response, sampled with seed 5.
    """
    fields: dict[str, Any] = {
        "engine": engine,
        "sampling": SamplingParams(max_tokens=40, seed=5),
        "max_prompt_length": 200,
        "max_response_length": 40,
        "max_steps": 4,
        "accumulate_reasoning": False,
        "make_agent": lambda: MathAgent(MathAgentParams()),
        "make_environment": None,
        "environment_blocks": False,
        "label": "train",
        "rollout": 0,
    }
    return WorkflowContext(**fields | changes)
