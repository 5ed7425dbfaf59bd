"""Weights in messages of limited size."""

from __future__ import annotations

import numpy as np
import torch

from rllm_verl.cpu.buckets import Buckets


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
