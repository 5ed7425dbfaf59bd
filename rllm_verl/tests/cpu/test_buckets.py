"""Weights in messages of limited size, to one rollout server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rllm_verl.cpu.weights import Buckets


def test_messages_respect_maximum_except_for_larger_weights() -> None:
    buckets, full = Buckets(max_bytes=40), []
    for name, count in (("a", 4), ("b", 6), ("c", 1), ("huge", 100), ("d", 1)):
        bucket = buckets.add(name, torch.ones(count, dtype=torch.bfloat16))
        if bucket is not None:
            full.append(bucket)
    full.append(buckets.rest())
    assert [sorted(bucket) for bucket in full] == [["a", "b"], ["c"], ["huge"], ["d"]]
    assert all(array.dtype == np.float32 for bucket in full for array in bucket.values())
    assert buckets.rest() == {}


def test_message_is_independent_of_later_training() -> None:
    weight, buckets = torch.ones(3), Buckets(max_bytes=1 << 20)
    buckets.add("weight", weight)
    weight.zero_()
    assert buckets.rest()["weight"].tolist() == [1, 1, 1]


class Server:
    """As Ray's handle of a server. It rejects a weight that is named `wrong`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *given: self._answer(name, *given))

    async def _answer(self, name: str, *given: Any) -> None:
        from ray.exceptions import RayError

        self.calls.append((name, sorted(given[0]) if given and isinstance(given[0], dict) else given))
        if given and isinstance(given[0], dict) and "wrong" in given[0]:
            raise RayError("has no weight wrong")


@pytest.fixture
def send() -> Callable[[Server, Iterator[tuple[str, torch.Tensor]]], Coroutine[Any, Any, None]]:
    import verl  # noqa: F401  (it imports the adapter itself)

    from rllm_verl.cpu.replica import CpuRollout

    def to_server(server: Server, weights: Iterator[tuple[str, torch.Tensor]]) -> Coroutine[Any, Any, None]:
        rollout = CpuRollout.__new__(CpuRollout)
        # Each weight is a separate message.
        rollout.config = SimpleNamespace(checkpoint_engine=SimpleNamespace(update_weights_bucket_megabytes=0))
        rollout._server = server
        return rollout.update_weights(weights, global_steps=9)

    return to_server


def test_server_switches_after_its_last_message(send: Any) -> None:
    server = Server()
    asyncio.run(send(server, iter([("a", torch.ones(1)), ("b", torch.ones(1))])))
    assert server.calls == [("stage_weights", ["a"]), ("stage_weights", ["b"]), ("sync_weights", (9,))]


def test_rejected_weights_fail_after_gathering_all(send: Any) -> None:
    from ray.exceptions import RayError

    server, weights = Server(), iter([(name, torch.ones(1)) for name in ("a", "wrong", "b", "c")])
    with pytest.raises(RayError, match="has no weight wrong"):
        asyncio.run(send(server, weights))
    assert next(weights, None) is None
    assert [name for name, _ in server.calls] == ["stage_weights", "stage_weights", "drop_staged_weights"]
