"""Unmodified agents from the package index: their answers, the stored calls, and the number of rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from threading import Thread
from typing import Any

import numpy as np
import pytest
from gateway_world import World

from .rollout import ProgramRunner, Rollout

QUESTION = "What is 6 times 7?"
ANSWER = "It is 42."
CALL = 'I multiply.<call>{"name": "multiply", "arguments": {"b": 7,  "a": 6}}</call>'
"""A tool call with unusual key order and spaces. Clients that rewrite arguments change both."""
CALLS = f'«By hand?»{CALL}<call>{{"name": "multiply", "arguments": {{"b": 8,  "a": 6}}}}</call>'
"""A response with reasoning, which some clients remove."""
AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "google-genai": ("google_genai", {"streamed": False}),
    "google-genai streamed": ("google_genai", {"streamed": True}),
    "google-genai chat": ("google_genai_chat", {}),
    "openai-agents": ("openai_agents", {"streamed": False}),
    "openai-agents streamed": ("openai_agents", {"streamed": True}),
    "openai-agents chat": ("openai_agents_chat", {}),
    "langgraph": ("langgraph_agent", {"responses": False, "streamed": False}),
    "langgraph streamed": ("langgraph_agent", {"responses": False, "streamed": True}),
    "langgraph responses": ("langgraph_agent", {"responses": True, "streamed": False}),
    "langgraph responses streamed": ("langgraph_agent", {"responses": True, "streamed": True}),
    "pydantic-ai": ("pydantic_ai_agent", {"model": "openai:gpt-4o", "streamed": False}),
    "pydantic-ai streamed": ("pydantic_ai_agent", {"model": "openai:gpt-4o", "streamed": True}),
    "pydantic-ai chat": ("pydantic_ai_agent", {"model": "openai-chat:gpt-4o", "streamed": False}),
    "pydantic-ai chat streamed": ("pydantic_ai_agent", {"model": "openai-chat:gpt-4o", "streamed": True}),
    "pydantic-ai anthropic": ("pydantic_ai_agent", {"model": "anthropic:claude-sonnet-4-5", "streamed": False}),
    "pydantic-ai anthropic streamed": (
        "pydantic_ai_agent",
        {"model": "anthropic:claude-sonnet-4-5", "streamed": True},
    ),
    "pydantic-ai google streamed": ("pydantic_ai_agent", {"model": "google:gemini-2.5-flash", "streamed": True}),
}
"""Kind of agent -> its program, and the fields of its task besides the question.

The gateway's own tests use the clients of OpenAI and Anthropic.
"""


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest, runner: ProgramRunner) -> Callable[[], Rollout]:
    program, options = AGENTS[request.param]
    return lambda: runner.run(program, {"question": QUESTION, **options})


def test_one_turn(agent: Callable[[], Rollout], world: World) -> None:
    world.policy.response = lambda prompt: ANSWER
    done = agent()
    assert done.answer == ANSWER
    assert_stored_as_sampled(done)
    assert (len(done.sampled), done.rows) == (1, 1)


def test_reasoning_tool_calls_and_results_are_one_row(agent: Callable[[], Rollout], world: World) -> None:
    world.policy.response = lambda prompt: ANSWER if prompt.endswith("<t>42<t>48<a>") else CALLS
    done = agent()
    assert done.answer == ANSWER
    assert_stored_as_sampled(done)
    assert (len(done.sampled), done.rows) == (2, 1)
    response = done.stored.calls[0].response
    assert (response["reasoning_content"], response["content"], len(response["tool_calls"])) == (
        "By hand?",
        "I multiply.",
        2,
    )
    first, second = done.sampled
    assert second.prompt.startswith(f"{first.prompt}{CALLS}$")


def test_google_genai_waits_for_a_slow_stream(runner: ProgramRunner, world: World) -> None:
    """It tries to parse comments, which keep other streams alive."""
    world.gateway.limits = replace(world.gateway.limits, keep_alive_seconds=0.05)
    world.policy.go.clear()
    slow = Thread(target=lambda: world.policy.asked.wait(60) and not time.sleep(0.5) and world.policy.go.set())
    slow.start()
    done = runner.run("google_genai", {"question": QUESTION, "streamed": True})
    slow.join()
    assert done.answer == "hello"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_smolagents_code_continues_after_sampled_tokens(streamed: bool, runner: ProgramRunner, world: World) -> None:
    """It adds text to its response. This text is context after the sampled tokens."""
    code = iter(("print(multiply(6, 7))", "final_answer(multiply(6, 7))"))
    world.policy.response = lambda prompt: f"Thought: I multiply.\n<code>\n{next(code)}\n</code> and more"
    done = runner.run("smolagents_code", {"question": QUESTION, "streamed": streamed})
    assert done.answer == 42
    assert_stored_as_sampled(done)
    assert all(bytes(each.completion.token_ids.tolist()).endswith(b"</code>") for each in done.sampled)
    assert (len(done.sampled), done.rows) == (2, 1)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_smolagents_text_tool_calls_are_a_second_row(streamed: bool, runner: ProgramRunner, world: World) -> None:
    final = '<call>{"name": "final_answer", "arguments": {"answer": "42"}}</call>'
    responses = iter((CALL, final))
    world.policy.response = lambda prompt: next(responses)
    # It sends `tool_choice: required`, which no policy can guarantee.
    done = runner.run("smolagents_tools", {"question": QUESTION, "streamed": streamed}, unsupported="ignore")
    assert done.answer == "42"
    assert_stored_as_sampled(done)
    assert (len(done.sampled), done.rows) == (2, 2)
    assert done.trace.counters["ignored/tool_choice"] == 2


def assert_stored_as_sampled(done: Rollout) -> None:
    """Check that every call of the policy is stored with its tokens, and delivered."""
    assert [each.id for each in done.stored.calls] == [each.call for each in done.sampled]
    for row, sampled in zip(done.stored.calls, done.sampled, strict=True):
        np.testing.assert_array_equal(done.stored.prompt_ids(row.id), sampled.prompt_ids)
        np.testing.assert_array_equal(row.response_ids, sampled.completion.token_ids)
    tokens = sum(len(each.completion.token_ids) for each in done.sampled)
    assert done.trained.metrics["gateway/trained_tokens"] == tokens
