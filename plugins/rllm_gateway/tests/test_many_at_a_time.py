"""Many sessions at a time: all are answered, and a closed one leaves nothing in memory."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_world import DEADLINE, World

from rllm_gateway.calls import CallReader
from rllm_gateway.link import OpenedSession

SESSIONS, CALLS = 128, 4
TURNS, NEW, SAMPLED = 50, 210, 400
"""A conversation of 30,500 tokens."""
MOST_BYTES = 500_000


async def ask(client: httpx.AsyncClient, session: OpenedSession, *messages: Any) -> Any:
    headers = {"authorization": f"Bearer {session.key}"}
    url = f"{session.openai_url()}/chat/completions"
    return await client.post(url, json={"messages": messages}, headers=headers)


@pytest.mark.long
def test_hundreds_of_calls_in_flight_are_all_answered(world: World) -> None:
    sessions = [world.open() for _ in range(SESSIONS)]

    async def ask_all() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=DEADLINE, limits=httpx.Limits(max_connections=None)) as client:
            asked = [
                ask(client, session, {"role": "user", "content": str(number)})
                for session in sessions
                for number in range(CALLS)
            ]
            answering = asyncio.gather(*asked)
            while world.gateway.in_flight < len(asked):
                await asyncio.sleep(0.001)
            world.policy.go.set()
            return await answering

    world.policy.go.clear()
    answers = asyncio.run(ask_all())
    assert [answer.status_code for answer in answers] == [200] * SESSIONS * CALLS
    assert {len(world.close(session).calls) for session in sessions} == {CALLS}


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


def test_fifty_turns_take_half_a_megabyte_of_store(world: World, tmp_path: Path) -> None:
    world.policy.response = lambda prompt: "word " * (SAMPLED // 5 - 1)
    world.policy.max_context = 10**6
    session = world.open()

    async def converse() -> None:
        said: list[Any] = []
        async with httpx.AsyncClient(timeout=DEADLINE) as client:
            for turn in range(TURNS):
                said.append({"role": "user", "content": f"{turn:>{NEW}}"})
                answer = await ask(client, session, *said)
                said.append(answer.json()["choices"][0]["message"])

    asyncio.run(converse())
    world.close(session)
    world.store.close()
    with CallReader.open(tmp_path / "calls.db") as reader:
        last = reader.session(session.id).prompt_ids(world.policy.calls[-1].call)
    assert len(last) + SAMPLED > 30_000
    assert sum(file.stat().st_size for file in tmp_path.glob("calls.db*")) < MOST_BYTES
