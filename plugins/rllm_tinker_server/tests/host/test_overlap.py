"""Sampling while a training request runs: neither waits for the other, and neither changes what the other makes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from rllm_tinker_server.host import Host
from rllm_tinker_server.lora import AdapterWeights
from rllm_tinker_server.messages import LoraSpec, SampleSettings
from rllm_tinker_server.owners import NOBODY
from rllm_tinker_server.samplers import Samplers
from rllm_tinker_server.serve import ModelOptions, open_service
from rllm_tinker_server.service import Service

from .conftest import make_request, make_trained_host, train, weights_of

DEADLINE = 60.0
"""Seconds after which something hangs, however busy the machine is."""
FREE = SampleSettings(max_tokens=40, seed=3, temperature=1.0, top_k=-1, top_p=1.0, stop_ids=frozenset())
PROMPTS = [np.arange(5, 9 + index, dtype=np.int32) for index in range(6)]
STEPS = 3
Found = list[tuple[list[int], list[float]]]


def _sample(host: Host, weights: AdapterWeights | None) -> Found:
    with ThreadPoolExecutor(max_workers=1, initializer=torch.set_num_threads, initargs=(1,)) as executor:
        samplers = Samplers(host, executor, kv_cache_bytes=1 << 24, max_concurrency=64, max_merged=2)
        found = asyncio.run(asyncio.wait_for(samplers.sample(weights, PROMPTS, FREE), DEADLINE))
    return [(each.tokens.tolist(), each.logprobs.tolist()) for each in found]


def test_neither_sampling_nor_training_changes_the_other() -> None:
    separate, concurrent = make_trained_host(), make_trained_host()
    for host in (separate, concurrent):
        train(host, "m", make_request())
    weights, found = concurrent.weights("m"), []
    expected = _sample(concurrent, weights)
    train(separate, "m", make_request(), STEPS)
    with ThreadPoolExecutor(max_workers=1, initializer=torch.set_num_threads, initargs=(1,)) as executor:
        training = executor.submit(train, concurrent, "m", make_request(), STEPS)
        while not found or not training.done():
            found.append(_sample(concurrent, weights))
        training.result()
    assert all(each == expected for each in found)
    assert torch.equal(weights_of(separate, "m"), weights_of(concurrent, "m"))


@pytest.mark.parametrize("what", ["samples", "log-probs"])
def test_samplers_answer_while_a_training_request_runs(tmp_path: Path, what: str) -> None:
    async def scenario(service: Service) -> bool:
        begun, answered = threading.Event(), threading.Event()

        def train() -> bool:
            begun.set()
            return answered.wait(DEADLINE)

        training = asyncio.create_task(service.in_worker(NOBODY, train))
        assert await asyncio.to_thread(begun.wait, DEADLINE)
        if what == "samples":
            await service.samplers.sample(service.host.weights("m"), PROMPTS, FREE)
        else:
            await service.samplers.score(None, PROMPTS[0])
        answered.set()
        return await training

    with open_service(ModelOptions(model="tiny", checkpoints=tmp_path, kv_cache_gib=0.01)) as service:
        service.host.create("m", LoraSpec(rank=4, seed=1))
        assert asyncio.run(scenario(service))
