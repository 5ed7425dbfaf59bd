"""Weights as messages of Ray, from the training process to the processes next to rollout servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
import torch
from ray.exceptions import RayActorError

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]

WEIGHTS = [("first", torch.arange(6.0).reshape(2, 3)), ("second", torch.ones(4)), ("third", torch.zeros(2))]
A_MESSAGE_EACH = 1


def stand_in() -> type:
    """As verl's `CheckpointEngineWorker`. Made in a function: Ray sends such a class as it is."""

    class Receiver:
        def __init__(self) -> None:
            from rllm_verl.cpu.ray_transfer import RayTransfer

            self.transfer = RayTransfer(bucket_size=1)

        def execute_checkpoint_engine(self, method: str, *args: Any) -> Any:
            return getattr(self.transfer, method)(*args)

        async def collect(self) -> list[tuple[str, Any]]:
            return [(name, weight.numpy()) async for name, weight in self.transfer.receive_weights()]

    return Receiver


@pytest.fixture
def receivers() -> Iterator[list[Any]]:
    handles = [ray.remote(stand_in()).options(num_cpus=0).remote() for _ in range(2)]
    yield handles
    for handle in handles:
        ray.kill(handle)


@pytest.fixture
def sender(receivers: list[Any]) -> Callable[..., Any]:
    from rllm_verl.cpu.ray_transfer import RayTransfer

    def make(*, is_master: bool) -> RayTransfer:
        handles = ray.get([each.execute_checkpoint_engine.remote("prepare") for each in receivers])
        of_workers, _ = RayTransfer.build_topology(1, 2, [None, *handles])
        made = RayTransfer(A_MESSAGE_EACH, is_master)
        made.init_process_group(of_workers["receivers"][0])
        return made

    return make


def test_every_receiver_gets_all_weights_at_each_transfer(sender: Callable[..., Any], receivers: list[Any]) -> None:
    for factor in (1, 2):
        sent = [(name, weight * factor) for name, weight in WEIGHTS]
        asyncio.run(sender(is_master=True).send_weights(iter(sent)))
        for received in ray.get([each.collect.remote() for each in receivers]):
            assert [name for name, _ in received] == ["first", "second", "third"]
            for (_, values), (_, weight) in zip(received, sent, strict=True):
                assert torch.equal(torch.from_numpy(values.copy()), weight)


def test_first_worker_sends_weights_gathered_from_all(sender: Callable[..., Any], receivers: list[Any]) -> None:
    left = iter(WEIGHTS)
    asyncio.run(sender(is_master=False).send_weights(left))
    assert next(left, None) is None
    sent_by_the_first = sender(is_master=True)
    asyncio.run(sent_by_the_first.send_weights(iter(WEIGHTS[:1])))
    assert [len(each) for each in ray.get([each.collect.remote() for each in receivers])] == [1, 1]


def test_missing_receiver_fails_after_gathering_all_weights(sender: Callable[..., Any], receivers: list[Any]) -> None:
    made, left = sender(is_master=True), iter(WEIGHTS)
    ray.kill(receivers[1])
    with pytest.raises(RayActorError):
        asyncio.run(made.send_weights(left))
    assert next(left, None) is None
