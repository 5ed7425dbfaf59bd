"""Requests of several models that wait at the same time: one call, separate errors, and the order of each model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tinker import RequestFailedError, types

from rllm_tinker_server.gathering import Gathering
from rllm_tinker_server.messages import ForwardBackward, ForwardBackwardResult
from rllm_tinker_server.turns import Answer

from .conftest import DEADLINE, Server, Start

Connect = Callable[..., Any]
REQUEST = ForwardBackward(loss="cross_entropy", config={}, examples=())
RESULT = ForwardBackwardResult(logprobs=(), metrics={})
ANSWER = Answer(b"", "text/plain")


def _datum(token: int) -> types.Datum:
    inputs = {"target_tokens": [token], "weights": [1.0]}
    return types.Datum(model_input=types.ModelInput.from_ints([1]), loss_fn_inputs=inputs)  # type: ignore[arg-type]


def _wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def server(start: Start) -> Server:
    return start()


def test_waiting_requests_of_models_are_one_call_and_keep_their_order(server: Server, connect: Connect) -> None:
    trainers = [connect(server).create_lora_training_client(base_model="fake").result() for _ in range(3)]
    names = [trainer.get_info().model_id for trainer in trainers]
    first, second, third = trainers
    server.host.gate.clear()
    results = [first.forward_backward([_datum(1)], "cross_entropy")]
    _wait_until(lambda: len(server.host.together) == 1)
    refused = second.forward_backward([_datum(2)], "gspo")
    results.append(second.forward_backward([_datum(3)], "cross_entropy"))
    results.append(third.forward_backward([_datum(4)], "cross_entropy"))
    steps = [trainer.optim_step(types.AdamParams()) for trainer in trainers]
    _wait_until(lambda: len(server.running.service.gathering._waiting) == 2)
    server.host.gate.set()
    assert [float(each.result(DEADLINE).loss_fn_outputs[0]["logprobs"].tolist()[0]) for each in results] == [-1, -3, -4]
    # Each step comes after the gradients of its model, and after no other one.
    assert [step.result(DEADLINE).metrics["value"] for step in steps] == [1.0, 1.0, 1.0]
    with pytest.raises(RequestFailedError):
        refused.result(DEADLINE)
    assert server.host.together[0] == names[:1]
    assert sorted(server.host.together[1]) == sorted(names[1:])


def test_request_waits_for_a_model_that_trains_at_the_same_time() -> None:
    calls: list[list[str]] = []

    def compute(requests: Any) -> Any:
        calls.append(sorted(requests))
        time.sleep(0.05)
        return dict.fromkeys(requests, RESULT)

    async def main() -> None:
        with ThreadPoolExecutor(1) as executor:
            gathering = Gathering(compute, executor)

            async def train(model_id: str, pause: float) -> None:
                for _ in range(4):
                    await gathering.answer(model_id, lambda: REQUEST, lambda _: ANSWER)
                    await asyncio.sleep(pause)

            await asyncio.gather(train("a", 0.0), train("b", 0.002))

    asyncio.run(asyncio.wait_for(main(), DEADLINE))
    assert sum(map(len, calls)) == 8
    assert calls.count(["a", "b"]) >= 2
