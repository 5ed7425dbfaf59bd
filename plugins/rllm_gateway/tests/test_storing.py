"""An answer is stored before it is given, and a closed session leaves no memory."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from gateway_clients import anthropic_of, openai_client, openai_of
from gateway_world import CALL, World, running

from rllm_gateway.calls import CallRow, StoreError
from rllm_gateway.sessions.link import OpenedSession, SessionSpec
from rllm_gateway.sessions.live_session import LiveSession

HI: Any = {"role": "user", "content": "hi"}
TOOL: Any = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


def ask(session: OpenedSession, *messages: Any, **options: Any) -> Any:
    with openai_of(session, max_retries=0) as client:
        return client.chat.completions.create(model="m", messages=list(messages) or [HI], **options).choices[0].message


def hang_up(world: World, session: OpenedSession, store: SlowStore) -> None:
    """Ask, and break the connection off while the answer is stored."""
    url = urlsplit(session.openai_url())
    connection = HTTPConnection(str(url.hostname), url.port)
    head = {"authorization": f"Bearer {session.key}", "content-type": "application/json"}
    connection.request("POST", f"{url.path}/chat/completions", json.dumps({"model": "m", "messages": [HI]}), head)
    assert store.begun.wait(60)
    connection.close()
    while world.gateway.in_flight:
        time.sleep(0.001)
    store.go.set()
    assert store.ended.wait(60)


class SlowStore:
    """Makes a store add rows only after `go` is set."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.ended, self.go = threading.Event(), threading.Event(), threading.Event()
        add = world.store.add

        async def slow(row: Any) -> None:
            self.begun.set()
            await asyncio.to_thread(self.go.wait, 60)
            await add(row)
            self.ended.set()

        monkeypatch.setattr(world.store, "add", slow)


def test_calls_are_stored_as_sampled_and_sent(world: World) -> None:
    world.policy.response = lambda prompt: "done" if "<t>" in prompt else CALL
    session = world.open()
    first = ask(session, HI, tools=[TOOL], temperature=0.5)
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
    one, two, *_ = stored.calls
    said = stored.messages(two.id)
    assert [said[0], said[2]] == [HI, result]
    assert said[1]["tool_calls"][0]["id"] == first.tool_calls[0].id
    assert (one.sent["temperature"], one.outcomes["temperature"]) == (0.5, "overruled")
    assert one.delivered


def test_stream_ends_after_the_commit(world: World) -> None:
    session = world.open()
    with openai_of(session) as client:
        for chunk in client.chat.completions.create(model="m", messages=[HI], stream=True):
            if chunk.choices[0].finish_reason is not None:
                assert len(world.store.calls(session.id)) == 1


def test_unstorable_call_fails_and_ends_the_rollout(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    import openai

    with openai_client(world, id="s:0") as client:
        add = world.store.add

        async def full(row: Any) -> None:
            if isinstance(row, CallRow):
                raise StoreError("made-up", "the disk is full")
            await add(row)

        monkeypatch.setattr(world.store, "add", full)
        for _ in range(2):
            with pytest.raises(openai.InternalServerError, match="be stored") as caught:
                client.chat.completions.create(model="m", messages=[HI])
            assert caught.value.response.headers["x-should-retry"] == "false"
        assert len(world.policy.calls) == 1
    trace = world.run(world.gateway.close_session("s:0"))
    assert (trace.calls, trace.ending) == ((), "failed")


def test_unseen_answer_goes_to_the_next_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    responses = iter(("first", "second"))
    world.policy.response = lambda prompt: next(responses)
    session, store = world.open(), SlowStore(world, monkeypatch)
    hang_up(world, session, store)
    assert ask(session).content == "first"
    assert ask(session).content == "second"
    assert [call.delivered for call in world.close(session).calls] == [True, True]


def test_unseen_answer_is_not_trained_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    session, store = world.open(), SlowStore(world, monkeypatch)
    hang_up(world, session, store)
    [call] = world.close(session).calls
    assert not call.delivered


def test_a_stream_that_waits_is_kept_alive(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.gateway, "limits", replace(world.gateway.limits, keep_alive_seconds=0.01))
    session = world.open()
    world.policy.go.clear()
    body = {"model": "m", "max_tokens": 9, "messages": [HI], "stream": True}
    url = f"{session.anthropic_url()}/v1/messages"
    with httpx.stream("POST", url, json=body, headers={"x-api-key": session.key}) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": waiting"
        world.policy.go.set()
        assert "event: message_stop" in list(lines)
    world.policy.go.clear()
    threading.Timer(0.1, world.policy.go.set).start()
    with anthropic_of(session) as client, client.messages.stream(model="m", max_tokens=9, messages=[HI]) as stream:
        assert stream.get_final_text() == "hello"


def give(session: OpenedSession, role: str, reward: float) -> httpx.Response:
    url = f"{session.openai_url(role)}/reward"
    headers = {"authorization": f"Bearer {session.key}", "x-rllm-reward-key": session.reward_key}
    return httpx.post(url, json={"reward": reward}, headers=headers)


def test_reward_belongs_to_role_with_calls(world: World) -> None:
    session = world.open(name_key="who", reward_source="agent")
    # Before the first call, any role may get one.
    assert give(session, "solver", 2.0).status_code == 200
    with anthropic_of(session) as client:
        client.messages.create(model="m", max_tokens=9, messages=[HI])
    refused = give(session, "judge", 1.0)
    assert refused.status_code == 409
    assert "'judge'" in refused.json()["error"]["message"]
    assert "'agent'" in refused.json()["error"]["message"]
    with anthropic_of(session, "judge") as client:
        client.messages.create(model="m", max_tokens=9, messages=[HI])
    ask(session, HI, metadata={"who": "critic"})
    for role, reward in (("agent", 0.5), ("judge", 1), ("agent", -1.0), ("critic", 0.5)):
        assert give(session, role, reward).status_code == 200
    assert world.close(session).rewards == {"solver": 2.0, "agent": -1.0, "judge": 1.0, "critic": 0.5}


def test_late_call_restores_no_deleted_session(world: World) -> None:
    import openai

    session = world.open(run="pruned")
    ask(session)
    world.store.prune(run="pruned")
    with openai_of(session, max_retries=0) as client:
        for _ in range(2):
            with pytest.raises(openai.InternalServerError, match="be stored"):
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "late"}])
    assert world.close(session).ending == "failed"
    assert world.store.sessions("pruned") == []


def test_gateways_of_two_runs_share_a_store(world: World) -> None:
    with running(world.store._path.parent) as other:
        # Runs of one config name their rollouts alike; the sessions of a run have names that no other has.
        sessions = [world.open(run="one"), other.open(id="task-0:0~", run="two")]
        with ThreadPoolExecutor(2) as threads:
            both = list(threads.map(lambda session: [ask(session).content for _ in range(10)], sessions))
        assert both == [["hello"] * 10] * 2
        other.close(sessions[1])
        for store in (world.store, other.store):
            assert [each.calls for run in ("one", "two") for each in store.sessions(run)] == [10, 10]
            assert [each.end is None for run in ("one", "two") for each in store.sessions(run)] == [True, False]


def test_repeated_choices_have_the_same_order() -> None:
    session = LiveSession(SessionSpec(id="s", run="r", rollout="t:0", max_tokens=9), "")
    first = [session.take_sibling(b"prompt") for _ in range(3)]
    session.lose(b"prompt", first)
    assert [session.take_sibling(b"prompt") for _ in range(4)] == [*first, 3]


def test_a_closed_session_leaves_nothing_in_memory(world: World) -> None:
    session = world.open()
    live = world.gateway.session(session.id, session.key)
    with httpx.Client(headers={"authorization": f"Bearer {session.key}"}) as client:
        client.post(f"{session.openai_url()}/responses", json={"input": "hi"})
    (row,) = live.calls.values()
    left = [weakref.ref(live), weakref.ref(row), weakref.ref(row.response_ids)]
    world.policy.calls.clear()
    world.close(session)
    del live, row
    # The event loop releases the objects of a future in its next iteration.
    world.run(asyncio.sleep(0))
    gc.collect()
    assert [ref() for ref in left] == [None] * 3
