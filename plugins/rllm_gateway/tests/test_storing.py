"""An answer is stored before it is given."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anthropic
import httpx
import openai
import pytest
from gateway_clients import openai_client
from gateway_world import CALL, World, running

from rllm_gateway.calls import CallRow, StoreError
from rllm_gateway.link import OpenedSession

HI: Any = {"role": "user", "content": "hi"}
TOOL: Any = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


def ask(session: OpenedSession, *messages: Any, **options: Any) -> Any:
    with openai.OpenAI(base_url=session.openai_url(), api_key=session.key, max_retries=0) as client:
        return client.chat.completions.create(model="m", messages=list(messages) or [HI], **options).choices[0].message


def hang_up(session: OpenedSession, when: threading.Event) -> None:
    """Ask, and break the connection off once something has happened: a time limit may come before it."""
    url = urlsplit(session.openai_url())
    connection = HTTPConnection(str(url.hostname), url.port)
    head = {"authorization": f"Bearer {session.key}", "content-type": "application/json"}
    connection.request("POST", f"{url.path}/chat/completions", json.dumps({"model": "m", "messages": [HI]}), head)
    assert when.wait(60)
    connection.close()


def test_what_is_stored_is_what_the_engine_saw_and_sampled(world: World) -> None:
    world.policy.response = lambda prompt: "done" if "<t>" in prompt else CALL
    session = world.open()
    first = ask(session, HI, tools=[TOOL])
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "x"}
    ask(session, HI, first, result, tools=[TOOL])
    ask(session, HI, {"role": "assistant", "content": "foreign"}, {"role": "user", "content": "and"}, n=2)
    stored = world.store.session(session.id)
    assert len(stored.calls) == 4
    for row in stored.calls:
        [sampled] = [call for call in world.policy.calls if call.call == row.id]
        assert stored.prompt_ids(row.id).tolist() == sampled.prompt_ids.tolist()
        assert row.response_ids.tolist() == sampled.completion.token_ids.tolist()
        assert row.logprobs.tolist() == sampled.completion.logprobs.tolist()
        assert row.weight_version == 3


def test_what_was_said_is_stored_with_what_became_of_parameters(world: World) -> None:
    session = world.open()
    first = ask(session, HI, temperature=0.5)
    ask(session, HI, first, {"role": "user", "content": "and"})
    stored = world.store.session(session.id)
    one, two = stored.calls
    assert stored.messages(two.id) == [
        HI,
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "and"},
    ]
    assert one.sent["temperature"] == 0.5
    assert one.outcomes["temperature"] == "overruled"
    assert one.delivered


def test_the_end_of_a_stream_comes_after_the_commit(world: World) -> None:
    session = world.open()
    with openai.OpenAI(base_url=session.openai_url(), api_key=session.key) as client:
        for chunk in client.chat.completions.create(model="m", messages=[HI], stream=True):
            if chunk.choices[0].finish_reason is not None:
                assert len(world.store.calls(session.id)) == 1


def test_a_call_that_cannot_be_stored_is_no_answer_and_ends_the_rollout(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with openai_client(world, id="s:0") as client:
        add = world.store.add

        async def full(row: Any) -> None:
            if isinstance(row, CallRow):
                raise StoreError("made-up", "the disk is full")
            await add(row)

        monkeypatch.setattr(world.store, "add", full)
        for _ in range(2):
            with pytest.raises(openai.InternalServerError, match="be stored"):
                client.chat.completions.create(model="m", messages=[HI])
        assert len(world.policy.calls) == 1
    trace = world.run(world.gateway.close_session("s:0"))
    assert (trace.calls, trace.ending) == ((), "failed")


def test_an_answer_that_nobody_saw_is_given_to_who_asks_next(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    responses = iter(("first", "second"))
    world.policy.response = lambda prompt: next(responses)
    session = world.open()
    add, go, begun = world.store.add, asyncio.Event(), threading.Event()

    async def slow(row: Any) -> None:
        begun.set()
        await go.wait()
        await add(row)

    monkeypatch.setattr(world.store, "add", slow)
    hang_up(session, begun)
    world.loop.call_soon_threadsafe(go.set)
    assert ask(session).content == "first"
    assert ask(session).content == "second"
    assert [call.delivered for call in world.close(session).calls] == [True, True]


def test_an_answer_that_nobody_ever_saw_is_not_trained_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    session = world.open()
    add, go, begun, ended = world.store.add, asyncio.Event(), threading.Event(), threading.Event()

    async def slow(row: Any) -> None:
        begun.set()
        await go.wait()
        await add(row)
        ended.set()

    monkeypatch.setattr(world.store, "add", slow)
    hang_up(session, begun)
    world.loop.call_soon_threadsafe(go.set)
    assert ended.wait(60)
    [call] = world.close(session).calls
    assert not call.delivered


def test_a_stream_that_waits_is_kept_alive(world: World) -> None:
    session = world.open()
    object.__setattr__(world.gateway.limits, "keep_alive_seconds", 0.01)
    world.policy.go.clear()
    body = {"model": "m", "max_tokens": 9, "messages": [HI], "stream": True}
    url = f"{session.anthropic_url()}/v1/messages"
    with httpx.stream("POST", url, json=body, headers={"x-api-key": session.key}) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": waiting"
        world.policy.go.set()
        assert "event: message_stop" in list(lines)


def test_clients_read_over_what_keeps_a_stream_alive(world: World) -> None:
    session = world.open()
    object.__setattr__(world.gateway.limits, "keep_alive_seconds", 0.01)
    world.policy.go.clear()
    threading.Timer(0.2, world.policy.go.set).start()
    with (
        anthropic.Anthropic(base_url=session.anthropic_url(), api_key=session.key) as client,
        client.messages.stream(model="m", max_tokens=9, messages=[HI]) as stream,
    ):
        assert stream.get_final_text() == "hello"


def test_a_reward_is_the_role_s(world: World) -> None:
    session = world.open()
    for role, reward in (("agent", 0.5), ("judge", 1), ("agent", -1.0)):
        assert give(session, role, reward).status_code == 200
    assert world.close(session).rewards == {"agent": -1.0, "judge": 1.0}


def give(session: OpenedSession, role: str, reward: float) -> httpx.Response:
    url, headers = f"{session.openai_url(role)}/reward", {"authorization": f"Bearer {session.key}"}
    return httpx.post(url, json={"reward": reward}, headers=headers)


def test_a_reward_of_a_role_without_calls_is_refused(world: World) -> None:
    session = world.open(name_key="who")
    with anthropic.Anthropic(base_url=session.anthropic_url(), api_key=session.key) as client:
        client.messages.create(model="m", max_tokens=9, messages=[HI])
        refused = give(session, "judge", 1.0)
        assert refused.status_code == 409
        assert "'judge'" in refused.json()["error"]["message"]
        assert "'agent'" in refused.json()["error"]["message"]
    with anthropic.Anthropic(base_url=session.anthropic_url("judge"), api_key=session.key) as client:
        client.messages.create(model="m", max_tokens=9, messages=[HI])
    ask(session, HI, metadata={"who": "critic"})
    given = {"agent": 0.0, "judge": 1.0, "critic": 0.5}
    assert [give(session, role, reward).status_code for role, reward in given.items()] == [200] * 3
    assert world.close(session).rewards == given


def test_a_late_call_does_not_bring_back_a_session_that_was_deleted(world: World) -> None:
    session = world.open()
    ask(session)
    world.store.prune(run="r")
    with openai.OpenAI(base_url=session.openai_url(), api_key=session.key, max_retries=0) as client:
        for _ in range(2):
            with pytest.raises(openai.InternalServerError, match="be stored"):
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "late"}])
    assert world.close(session).ending == "failed"
    assert world.store.sessions() == []


@pytest.mark.long
def test_gateways_of_two_runs_share_a_store(world: World, tmp_path: Path) -> None:
    with running(tmp_path) as other:
        # Runs of one config name their rollouts alike; the sessions of a run have names that no other has.
        sessions = [world.open(run="one"), other.open(id="task-0:0~", run="two")]
        with ThreadPoolExecutor(2) as threads:
            both = list(threads.map(lambda session: [ask(session).content for _ in range(20)], sessions))
        assert both == [["hello"] * 20] * 2
        other.close(sessions[1])
        assert [(each.session.run, each.calls) for each in world.store.sessions()] == [("one", 20), ("two", 20)]
        assert [(each.session.run, each.end is None) for each in other.store.sessions()] == [
            ("one", True),
            ("two", False),
        ]
