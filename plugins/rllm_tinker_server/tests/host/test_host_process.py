"""Training in a child process: the same bits as in one process, and an error if the child is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
import torch
from tinker import types
from tinker_in_process import running_server

from rllm_local.model import load_model
from rllm_local.settings import TrainedModelSection
from rllm_tinker_server.build import ModelOptions, opened_service
from rllm_tinker_server.host import Host
from rllm_tinker_server.host_process import HostProcess
from rllm_tinker_server.messages import LoraSpec, RequestRefused

from .conftest import STEP, make_request, weights_of

DEADLINE = 100.0
SETTINGS = {"name": "tiny", "tokenizer": "tiny", "seed": 0}


@pytest.fixture
def process() -> Iterator[HostProcess]:
    section = TrainedModelSection(name="tiny", device="cpu")
    host = Host(load_model(section, 0), **SETTINGS)  # type: ignore[arg-type]
    made = HostProcess(host, threads=1, section=section, seed=0, settings=SETTINGS)
    yield made
    made.close()


def _train(host: Any, directory: Path) -> tuple[list[Any], torch.Tensor]:
    """Make three steps, the last one twice: before and after loading the state before it."""
    # The model `tiny` has fewer tokens than the other models of these tests.
    request = make_request("ppo")
    examples = tuple(replace(each, tokens=each.tokens % 30, targets=each.targets % 30) for each in request.examples)
    request = replace(request, examples=examples)
    host.create("m", LoraSpec(rank=4, seed=1))
    directory.mkdir()
    results = []
    for number in range(3):
        if number == 2:
            host.save_state("m", directory, optimizer=True)
        results.append(host.forward_backward("m", request))
        results.append(host.optim_step("m", STEP))
    trained = weights_of(host, "m")
    host.load_state("m", directory, optimizer=True)
    host.forward_backward("m", request)
    host.optim_step("m", STEP)
    assert torch.equal(weights_of(host, "m"), trained)
    return results, trained


@pytest.mark.long
def test_training_process_has_the_same_bits(process: HostProcess, tmp_path: Path) -> None:
    here = Host(load_model(TrainedModelSection(name="tiny", device="cpu"), 0), **SETTINGS)  # type: ignore[arg-type]
    (results, weights), (expected, expected_weights) = (
        _train(process, tmp_path / "apart"),
        _train(here, tmp_path / "here"),
    )
    assert torch.equal(weights, expected_weights)
    for found, other in zip(results, expected, strict=True):
        if isinstance(found, dict):
            assert found == other
            continue
        assert found.metrics == other.metrics
        for mine, theirs in zip(found.logprobs, other.logprobs, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    loaded = process.load_weights(tmp_path / "apart")
    saved = here.load_weights(tmp_path / "here")
    for name, factors in saved.factors.items():
        assert torch.equal(loaded.factors[name].up, factors.up)
    with pytest.raises(RequestRefused, match="already"):
        process.create("m", LoraSpec(rank=4))


@pytest.mark.long
def test_killed_training_process_is_an_error_for_clients(tmp_path: Path) -> None:
    """Sampling continues, and no request waits forever."""
    options = ModelOptions(model="tiny", checkpoints=tmp_path, kv_cache_gib=0.01, training_process=True)
    with opened_service(options) as service, running_server(service) as running:
        assert isinstance(service.host, HostProcess)
        client = tinker.ServiceClient(base_url=running.url, api_key="tml-test")
        trainer = client.create_lora_training_client("tiny", rank=4).result(DEADLINE)
        sampler = trainer.save_weights_and_get_sampling_client().result(DEADLINE)
        os.kill(service.host.pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(tinker.TinkerError, match="training process was killed by SIGKILL"):
                trainer.optim_step(types.AdamParams()).result(DEADLINE)
        prompt, params = types.ModelInput.from_ints([4]), types.SamplingParams(max_tokens=1)
        assert len(sampler.sample(prompt, 1, params).result(DEADLINE).sequences) == 1
        client.close("success").result(DEADLINE)
