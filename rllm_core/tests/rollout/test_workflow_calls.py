"""Responses that a workflow answers itself, with what tools say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tool_tokenizer import ToolTokenizer

from rllm_core.contracts.environment import Outcome
from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.data.types import Episode, TerminationReason
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.rollout.workflows import MultiTurnWorkflow

from .conftest import FunctionEnvironment

MakeContext = Callable[..., WorkflowContext]


class Calling(MultiTurnWorkflow):
    """Answers responses that begin with a question mark itself."""

    async def offered_tools(self, environment: Any, task: Any) -> Any:
        return [{"type": "function", "function": {"name": f"look_up_{task['topic']}"}}]

    async def answers_to_calls(self, response: Any, episode: Episode) -> Any:
        return [{"role": "tool", "content": "17"}] if response.content.startswith("?") else []


def test_responses_that_a_workflow_answers_are_no_actions(engine: Any, context: MakeContext) -> None:
    responses = iter(["?", "?$", "17$"])
    actions: list[str] = []

    def step(action: str) -> Outcome:
        actions.append(action)
        return Outcome(done=True, reward=1.0)

    engine.answer = lambda prompt, sampling: next(responses)
    engine.renderer = TemplateRenderer(ToolTokenizer(), [ord("$")])
    made = context(make_environment=lambda: FunctionEnvironment(step=step))
    episode = asyncio.run(Calling(made).run({"topic": "sums"}, "t:0"))
    first = '[{"type": "function", "function": {"name": "look_up_sums"}}]<u>go<a>'
    assert engine.prompts == [first, f"{first}?$<t>17<a>", f"{first}?$<t>17<a>?$<t>17<a>"]
    assert actions == ["17"]
    assert [step.reward for step in episode.trajectories[0].steps] == [0.0, 0.0, 1.0]
    assert episode.trajectories[0].tokens.prefix_breaks == 0


def test_calls_count_as_turns(engine: Any, context: MakeContext) -> None:
    engine.answer = lambda prompt, sampling: "?$"
    engine.renderer = TemplateRenderer(ToolTokenizer(), [ord("$")])
    made = context(make_environment=FunctionEnvironment, max_steps=3)
    episode = asyncio.run(Calling(made).run({"topic": "a"}, "t:0"))
    assert (len(engine.prompts), episode.termination_reason) == (3, TerminationReason.MAX_TURNS_EXCEEDED)
