"""The gate: who may sample while weights change, and after verl's abort."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from rllm_verl.cpu.server import Gate

DEADLINE = 60.0


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, DEADLINE))


async def let_others_run() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_closed_gate_waits_for_running_and_blocks_new() -> None:
    async def scenario() -> None:
        gate, order, leave = Gate(), list[str](), asyncio.Event()

        async def request(name: str) -> None:
            async with gate.enter():
                order.append(name)
                await leave.wait()

        async def change() -> None:
            async with gate.exclusive():
                order.append("change")

        first = asyncio.create_task(request("first"))
        await let_others_run()
        changing = asyncio.create_task(change())
        await let_others_run()
        second = asyncio.create_task(request("second"))
        await let_others_run()
        assert order == ["first"]
        leave.set()
        await asyncio.gather(first, changing, second)
        assert order == ["first", "change", "second"]

    run(scenario())


def test_after_an_abort_requests_wait_until_the_resume() -> None:
    async def scenario() -> None:
        gate, served = Gate(), asyncio.Event()

        async def request() -> None:
            async with gate.enter() as admitted:
                assert admitted
                served.set()

        await gate.abort(rejecting=False)
        waiting = asyncio.create_task(request())
        await let_others_run()
        assert not served.is_set()
        async with gate.exclusive():
            pass
        await let_others_run()
        assert not served.is_set(), "a change of weights opened a gate that an abort had shut"
        await gate.resume()
        await waiting

    run(scenario())


def test_rejecting_abort_rejects_waiting_and_new_requests() -> None:
    async def scenario() -> None:
        gate, admissions = Gate(), list[bool]()

        async def request() -> None:
            async with gate.enter() as admitted:
                admissions.append(admitted)

        await gate.abort(rejecting=False)
        waiting = asyncio.create_task(request())
        await let_others_run()
        await gate.abort(rejecting=True)
        await waiting
        await request()
        await gate.resume()
        await request()
        assert admissions == [False, False, True]

    run(scenario())


def test_a_resume_without_an_abort_changes_nothing() -> None:
    async def scenario() -> None:
        gate = Gate()
        await gate.resume()
        async with gate.exclusive():
            waiting = asyncio.create_task(gate.enter().__aenter__())
            await let_others_run()
            assert not waiting.done()
            waiting.cancel()

    run(scenario())
