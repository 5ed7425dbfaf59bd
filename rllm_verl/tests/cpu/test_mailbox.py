"""Weights on their way through a mailbox, and in messages of limited size. Without Ray."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from rllm_core.errors import BackendError
from rllm_verl.cpu.buckets import Arrays, Buckets
from rllm_verl.cpu.mailbox import Mailbox

DEADLINE = 60.0


def test_every_reader_gets_every_message_in_order_and_the_sender_waits_for_the_slowest() -> None:
    messages: list[Arrays | None] = [{"a": np.zeros(1, np.float32)}, {"b": np.ones(2, np.float32)}, None]

    async def read(mailbox: Mailbox, pause: float) -> list[str]:
        names: list[str] = []
        while (message := await mailbox.take(len(names))) is not None:
            names += message
            await asyncio.sleep(pause)
        return names

    async def send(mailbox: Mailbox) -> None:
        for message in messages:
            await mailbox.put(message)

    async def main() -> None:
        mailbox = Mailbox(readers=2)
        read_by = await asyncio.gather(read(mailbox, 0), read(mailbox, 0.02), send(mailbox))
        assert read_by[0] == read_by[1] == ["a", "b"]

    asyncio.run(asyncio.wait_for(main(), DEADLINE))


def test_readers_learn_that_the_sender_failed() -> None:
    async def main() -> None:
        mailbox = Mailbox(readers=1)
        waiting = asyncio.create_task(mailbox.take(0))
        await asyncio.sleep(0)
        await mailbox.fail("ValueError: no weights")
        with pytest.raises(BackendError, match="could not send its weights: ValueError: no weights"):
            await waiting

    asyncio.run(asyncio.wait_for(main(), DEADLINE))


def test_messages_stay_below_their_size_except_for_larger_weights() -> None:
    buckets, full = Buckets(max_bytes=40), []
    for name, count in (("a", 4), ("b", 6), ("c", 1), ("huge", 100), ("d", 1)):
        bucket = buckets.add(name, torch.ones(count, dtype=torch.bfloat16))
        if bucket is not None:
            full.append(bucket)
    full.append(buckets.rest())
    assert [sorted(bucket) for bucket in full] == [["a", "b"], ["c"], ["huge"], ["d"]]
    assert all(array.dtype == np.float32 for bucket in full for array in bucket.values())
    assert buckets.rest() == {}


def test_a_message_is_a_copy_that_later_training_does_not_change() -> None:
    weight, buckets = torch.ones(3), Buckets(max_bytes=1 << 20)
    buckets.add("weight", weight)
    weight.zero_()
    assert buckets.rest()["weight"].tolist() == [1, 1, 1]
