"""Which request continues which response: its sampled tokens stay, and only later messages are rendered."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from gateway_clients import openai_of
from gateway_world import CALL, World

from rllm_gateway.sessions.link import OpenedSession

HI: Any = {"role": "user", "content": "hi"}
TOOL: Any = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
OTHER: Any = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}


class Agent:
    """Asks, and sees what the gateway made of it."""

    def __init__(self, world: World, session: OpenedSession, role: str = "agent") -> None:
        self.world, self.session = world, session
        self._client = openai_of(session, role, max_retries=0)

    def ask(self, *messages: Any, **options: Any) -> Any:
        """The message that is answered."""
        return self._client.chat.completions.create(model="m", messages=messages, **options).choices[0].message

    def parents(self) -> list[int | None]:
        """Closes the session. The calls' parents, by their place in the trace."""
        calls = self.world.close(self.session).calls
        places = {call.id: place for place, call in enumerate(calls)}
        return [None if call.parent is None else places[call.parent] for call in calls]

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def agent(world: World) -> Iterator[Agent]:
    agent = Agent(world, world.open())
    yield agent
    agent.close()


def numbered(world: World) -> None:
    """Responses tell calls apart."""
    world.policy.response = lambda prompt: f"r{len(world.policy.calls)}"


def test_a_conversation_is_one_line_of_calls(agent: Agent, world: World) -> None:
    numbered(world)
    first = agent.ask(HI)
    second = agent.ask(HI, first, {"role": "user", "content": "and"})
    agent.ask(HI, first, {"role": "user", "content": "and"}, second, {"role": "user", "content": "so"})
    assert world.policy.calls[-1].prompt == "<u>hi<a>r0$<u>and<a>r1$<u>so<a>"
    assert len({call.branch for call in world.policy.calls}) == 1
    assert agent.parents() == [None, 0, 1]


def test_stop_token_in_message_ends_no_turn(agent: Agent, world: World) -> None:
    """`$` is the stop token, and the text of it is its own token."""
    world.policy.response = lambda prompt: "a$b"
    asked: Any = {"role": "user", "content": "$ or $$?"}
    first = agent.ask(asked, max_tokens=2)
    agent.ask(asked, first, {"role": "user", "content": "$"})
    before, after = world.policy.calls
    sampled = [*before.prompt_ids.tolist(), *before.completion.token_ids.tolist()]
    assert after.prompt_ids.tolist()[: len(sampled)] == sampled
    assert agent.parents() == [None, 0]


def test_edited_response_is_context_of_new_conversation(agent: Agent, world: World) -> None:
    numbered(world)
    agent.ask(HI)
    agent.ask(HI, {"role": "assistant", "content": "edited"}, {"role": "user", "content": "and"})
    assert world.policy.calls[-1].prompt == "<u>hi<a>edited$<u>and<a>"
    trace = world.close(agent.session)
    assert [call.parent for call in trace.calls] == [None, None]
    assert trace.counters["branches"] == 1


def test_later_foreign_response_keeps_earlier_calls(agent: Agent, world: World) -> None:
    numbered(world)
    first = agent.ask(HI)
    said: list[Any] = [HI, first, {"role": "user", "content": "and"}, {"role": "assistant", "content": "foreign"}]
    agent.ask(*said, {"role": "user", "content": "so"})
    assert world.policy.calls[-1].prompt == "<u>hi<a>r0$<u>and<a>foreign$<u>so<a>"
    assert agent.parents() == [None, 0]


def test_two_continuations_of_a_response_are_two_branches(agent: Agent, world: World) -> None:
    numbered(world)
    first = agent.ask(HI)
    agent.ask(HI, first, {"role": "user", "content": "left"})
    agent.ask(HI, first, {"role": "user", "content": "right"})
    root, left, right = (call.branch for call in world.policy.calls)
    assert left == root != right
    assert agent.parents() == [None, 0, 0]


def test_arguments_may_be_written_otherwise(agent: Agent, world: World) -> None:
    world.policy.response = lambda prompt: "done" if "<t>" in prompt else CALL
    first = agent.ask(HI, tools=[TOOL])
    call = first.tool_calls[0]
    echoed = {
        "content": None,
        "tool_calls": [
            {
                "type": "function",
                "function": {"arguments": '{"word":"proof"}', "name": "look_up"},
                "id": call.id,
            }
        ],
        "role": "assistant",
        "refusal": None,
    }
    agent.ask(HI, echoed, {"role": "tool", "tool_call_id": call.id, "content": "x"}, tools=[TOOL])
    assert agent.parents() == [None, 0]


def test_changed_tools_start_a_new_trajectory(agent: Agent, world: World) -> None:
    numbered(world)
    first = agent.ask(HI, tools=[TOOL])
    agent.ask(HI, first, {"role": "user", "content": "and"}, tools=[TOOL, OTHER])
    assert json.dumps(OTHER) in world.policy.calls[-1].prompt
    assert agent.parents() == [None, None]


def test_only_marked_retry_is_the_same_sample(agent: Agent, world: World) -> None:
    numbered(world)
    again = {"extra_headers": {"x-stainless-retry-count": "1"}}
    ho = {"role": "user", "content": "ho"}
    asked = ((HI, {}), (HI, {}), (HI, again), (ho, again))
    assert [agent.ask(message, **options).content for message, options in asked] == ["r0", "r1", "r1", "r2"]
    assert world.close(agent.session).counters["retries"] == 1


def test_a_marked_retry_joins_what_is_being_sampled(agent: Agent, world: World) -> None:
    numbered(world)
    world.policy.go.clear()
    answers = list[str]()
    first = threading.Thread(target=lambda: answers.append(agent.ask(HI).content))
    first.start()
    assert world.policy.asked.wait(60)
    retry = {"x-stainless-retry-count": "1"}
    second = threading.Thread(target=lambda: answers.append(agent.ask(HI, extra_headers=retry).content))
    second.start()
    while world.gateway.in_flight < 2:
        time.sleep(0.001)
    world.policy.go.set()
    first.join()
    second.join()
    assert answers == ["r0", "r0"]
    assert len(world.policy.calls) == 1


@pytest.mark.long
def test_abandoned_request_is_cancelled_and_not_reused(agent: Agent, world: World) -> None:
    import openai

    numbered(world)
    world.policy.go.clear()
    with pytest.raises(openai.APITimeoutError):
        agent.ask(HI, timeout=3.0)
    assert world.policy.cancelled.wait(60)
    world.policy.go.set()
    assert agent.ask(HI).content == "r0"
    again = {"x-stainless-retry-count": "1"}
    assert agent.ask(HI, extra_headers=again).content == "r1"
    assert agent.ask(HI, extra_headers=again).content == "r1"
    trace = world.close(agent.session)
    assert (len(trace.calls), trace.counters["cancelled"]) == (2, 1)


def test_tool_call_ids_are_unique_in_a_conversation(agent: Agent, world: World) -> None:
    world.policy.response = lambda prompt: CALL
    said: list[Any] = [HI]
    for _ in range(3):
        message = agent.ask(*said, tools=[TOOL])
        said += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "x"}]
    assert len({each["tool_call_id"] for each in said if isinstance(each, dict) and each["role"] == "tool"}) == 3
    assert agent.parents() == [None, 0, 1]


def test_a_closed_session_answers_409_and_writes_nothing(agent: Agent, world: World) -> None:
    import openai

    agent.ask(HI)
    world.close(agent.session)
    with pytest.raises(openai.ConflictError) as caught:
        agent.ask(HI)
    assert caught.value.code == "session_closed"
    assert len(world.store.calls(agent.session.id)) == 1


def test_kept_messages_have_the_last_conversation_with_tools(world: World) -> None:
    world.policy.response = lambda prompt: "done" if "<t>" in prompt else CALL
    session = world.open(keeps_messages=True)
    agent = Agent(world, session)
    agent.ask({"role": "user", "content": "aside"})
    first = agent.ask(HI, tools=[TOOL])
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "x"}
    agent.ask(HI, first, result, tools=[TOOL])
    said = world.close(session).transcript
    assert said is not None
    assert [message["role"] for message in said.messages] == ["user", "assistant", "tool", "assistant"]
    assert said.messages[1]["tool_calls"] == [call.model_dump() for call in first.tool_calls]
    assert (said.messages[2], said.messages[3]["content"]) == (result, "done")
    assert said.tools == [TOOL]
    agent.close()


def test_edited_response_is_returned_as_sent(world: World) -> None:
    numbered(world)
    for keeps in (True, False):
        agent = Agent(world, world.open(keeps_messages=keeps))
        agent.ask(HI)
        agent.ask(HI, {"role": "assistant", "content": "edited"}, {"role": "user", "content": "and"})
        said = world.close(agent.session).transcript
        agent.close()
        assert (said is not None) == keeps
        if said is not None:
            assert [message["content"] for message in said.messages] == ["hi", "edited", "and", "r1"]
