"""Numbers of the calls of one prompt, and the memory of a closed session."""

from __future__ import annotations

import asyncio
import gc
import weakref

import httpx
from gateway_world import World

from rllm_gateway.link import SessionSpec
from rllm_gateway.live_session import LiveSession


def test_choices_that_are_asked_again_are_in_the_same_order() -> None:
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
