"""Models whose template rewrites the history: the conversation is rendered again, and every token stays exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.data.types import Trajectory
from rllm_core.rollout.conversation import Conversation
from rllm_core.rollout.template_renderer import TemplateRenderer

STOP = ord("$")
TOOLS = [{"type": "function", "function": {"name": "add"}}]


class Rewriting(TemplateRenderer):
    """As some models' templates, it has no next prompt that begins with the last one."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer, [STOP])
        self.tools: list[Any] = []

    def prompt(self, messages: Any, tools: Any = ()) -> Any:
        self.tools.append(tools)
        return super().prompt([{"role": "system", "content": str(len(messages))}, *messages])

    def bridge(self, *arguments: Any) -> Any:
        return None


def test_without_a_bridge_the_history_is_rendered(engine: Any, tokenizer: Any, context: Any) -> None:
    responses = iter(["one$", "two", "three$"])
    engine.answer = lambda prompt, sampling: next(responses)
    engine.renderer = Rewriting(tokenizer)
    trajectory = Trajectory("agent")
    conversation = Conversation(context(), trajectory, "s", TOOLS)

    async def converse() -> None:
        for said in ("a", "b", "c"):
            conversation.add_observation(said)
            await conversation.generate()

    asyncio.run(converse())
    assert engine.prompts == [
        "<s>1<u>a<a>",
        "<s>3<u>a<a>one$<u>b<a>",
        "<s>5<u>a<a>one$<u>b<a>two$<u>c<a>",
    ]
    assert engine.renderer.tools == [TOOLS] * 3
    assert ["".join(map(chr, step.response_ids)) for step in trajectory.steps] == ["one$", "two", "three$"]
    assert trajectory.tokens.prefix_breaks == 2


def test_a_response_says_how_it_ended(engine: Any, context: Callable[..., WorkflowContext]) -> None:
    engine.answer = lambda prompt, sampling: "too long"
    conversation = Conversation(context(), Trajectory("agent"), "s")
    conversation.add_observation("hi")
    response = conversation.parsed(asyncio.run(conversation.generate()))
    assert (response.content, response.finish_reason) == ("too long", "length")
