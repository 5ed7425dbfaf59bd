"""Requests that are repeated late, stopped before they start, or closed while they wait."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import virtual_time

from rllm_tinker_server.fairness import SharedLimit
from rllm_tinker_server.limits import TinkerLimits
from rllm_tinker_server.messages import BaseModelInfo, RequestError
from rllm_tinker_server.owners import NOBODY
from rllm_tinker_server.sampling import Sampling
from rllm_tinker_server.service import Service
from rllm_tinker_server.sessions import SamplingSession
from rllm_tinker_server.turns import Answer, Futures, Turns
from rllm_tinker_server.wire import json_answer, user_error

from .conftest import DEADLINE, FakeHost, FakeSamplers, Server, Start


def wait_until_result_is_dropped(server: Server, request_id: str) -> None:
    until = time.monotonic() + DEADLINE
    while server.result(request_id).status_code != 410:
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("route", ["create_model", "load_weights"])
def test_a_late_repeated_creation_keeps_the_model(start: Start, route: str) -> None:
    server = start(keep_retrieved=0.1, sweep_interval=0.02)
    session_id = server.session()
    first = server.model(session_id)
    path = server.result(server.get_request_id("save_weights", model_id=first, seq_id=1, path="one")).json()["path"]
    content: dict[str, Any] = {"session_id": session_id, "model_seq_id": 1, "base_model": "fake"}
    content |= {"path": path} if route == "load_weights" else {"lora_config": {"rank": 4}}
    created = server.get_request_id(route, **content)
    model_id = server.result(created).json()["model_id"]
    model = server.host.models[model_id]
    server.result(server.step(model_id, 1))
    wait_until_result_is_dropped(server, created)
    assert server.get_request_id(route, **content) == created
    assert server.result(server.step(model_id, 2)).json()["metrics"]["steps"] == 2.0
    assert server.host.models[model_id] is model


def test_repeated_unload_has_the_same_result_at_once(start: Start) -> None:
    server = start()
    model_id = server.model(server.session())
    server.host.gate.clear()
    busy = server.running.service
    busy._executor.submit(server.host.gate.wait, DEADLINE)
    ids = [server.get_request_id("unload_model", model_id=model_id) for _ in range(2)]
    server.host.gate.set()
    assert ids[0] == ids[1]
    assert server.result(ids[0]).json()["model_id"] == model_id
    assert server.get_request_id("unload_model", model_id=model_id) == ids[0]
    assert model_id not in server.host.models
    assert server.post("optim_step", model_id=model_id, seq_id=1, adam_params={}).status_code == 404


def test_sample_cancelled_before_its_start_is_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        with ThreadPoolExecutor(max_workers=1) as executor:
            host = FakeHost(
                BaseModelInfo(name="fake", tokenizer="fake", max_context=64, vocabulary=100, layers=1, dtype="float32")
            )
            samplers = FakeSamplers(host, executor)
            service = Service(host, samplers, executor, tmp_path, names=("fake",), limits=TinkerLimits(long_poll=5.0))
            sampling = Sampling(service)
            sampler_id = f"{service.sessions.create(NOBODY, None, None).session_id}:sample:0"
            service.sessions.add_sampler(SamplingSession(sampler_id=sampler_id, owner=NOBODY, base_model="fake"))
            prompt = {"chunks": [{"tokens": [1, 2]}]}
            asked = {"sampling_session_id": sampler_id, "seq_id": 0, "prompt": prompt, "sampling_params": {}}
            request_id = json.loads(sampling.submit(NOBODY, json.dumps(asked).encode()).body)["request_id"]
            sampling.cancel(NOBODY, json.dumps({"request_id": request_id}).encode())
            answer = await service.futures.wait(request_id, NOBODY)
            assert answer is not None
            assert b"cancelled" in answer.body
            assert samplers.asked == 0

    asyncio.run(scenario())


def in_turns(limits: TinkerLimits, scenario: Callable[[Turns, Futures], Awaitable[None]]) -> list[str]:
    """Return the errors that the event loop received during the scenario."""
    faults: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(str(context)))
        futures = Futures(limits)
        await scenario(
            Turns("a:train:0", NOBODY, futures, SharedLimit(limits.max_waiting_bytes), limits, user_error), futures
        )

    virtual_time.run(main())
    return faults


async def nothing() -> Answer:
    return json_answer({})


def test_waiting_requests_do_not_change_closed_models() -> None:
    async def scenario(turns: Turns, futures: Futures) -> None:
        turns.submit(3, "optim_step", 1, nothing)
        turns.close("It was unloaded.")
        await asyncio.sleep(0.1)
        answer = await futures.wait("a:train:0:3", NOBODY)
        assert answer is not None
        assert b"It was unloaded." in answer.body

    assert in_turns(TinkerLimits(turn_deadline=0.05), scenario) == []


def test_later_requests_do_not_extend_earlier_deadlines() -> None:
    async def scenario(turns: Turns, futures: Futures) -> None:
        for number in range(2, 14, 2):
            turns.submit(number, "optim_step", 1, nothing)
            await asyncio.sleep(0.05)
        answer = await futures.wait("a:train:0:2", NOBODY)
        assert answer is not None
        assert b"which never came" in answer.body
        with pytest.raises(RequestError, match="checkpoint"):
            turns.submit(0, "create_model", 1, nothing)
        await asyncio.sleep(1.0)
        turns.submit(13, "optim_step", 1, nothing)
        await asyncio.sleep(0.1)
        assert await futures.wait("a:train:0:13", NOBODY) == await nothing()

    assert in_turns(TinkerLimits(turn_deadline=0.2, long_poll=0.01), scenario) == []
