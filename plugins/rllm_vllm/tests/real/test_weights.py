"""vLLM's weights are checked after weight syncs: correct weights give no alarm, and faults stop the run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from heads_of_32 import MAX_CONTEXT
from weight_faults import (
    FIRST,
    LORA,
    SENT,
    ExpectedError,
    Fault,
    Sender,
    apply_twice,
    make_check,
    make_context,
    run_steps,
)

from rllm_core.contracts.engine import EngineSetup, NamedTensors, SamplingParams
from rllm_core.contracts.weight_comparison import Probe
from rllm_core.errors import BackendError
from rllm_local.backend import LocalBackend
from rllm_local.samplers import HostedSampler
from rllm_vllm.engine import VllmEngine
from rllm_vllm.options import VllmOptions

T = TypeVar("T")
FAULTS: dict[str, tuple[Fault, ExpectedError]] = SENT | {
    "merged adapter applied twice": (
        apply_twice,
        ExpectedError("sampler-weights-faulty", "has the adapter applied twice.", LORA),
    )
}
CLEAN: dict[str, dict[str, Any]] = {"all weights": {}, "LoRA": {"lora_rank": 4}}


class SharedEngine:
    """One vLLM for several runs with the same model, each with its own event loop, because its start takes a minute."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._engine = VllmEngine(VllmOptions())
        self._has_started = False
        self.sender: Sender | None = None

    async def start(self, setup: EngineSetup) -> None:
        if not self._has_started:
            await self._call(self._engine.start(setup))
        self._has_started = True
        self.renderer, self.max_context = self._engine.renderer, self._engine.max_context

    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        sent = dict(weights) if self.sender is None else self.sender.send(weights)
        # Two names of one tensor cannot be written to a file.
        await self._call(self._engine.load_weights([(name, each.clone()) for name, each in sent.items()], version))

    async def score(self, probe: Probe) -> Mapping[str, Any]:
        return await self._call(self._engine.score(probe))

    async def digests(self, replica: str) -> Mapping[str, str]:
        return await self._call(self._engine.digests(replica))

    async def close(self) -> None: ...

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._engine.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _call(self, call: Awaitable[T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def shared_engine() -> Iterator[SharedEngine]:
    engine = SharedEngine()
    yield engine
    engine.stop()


@pytest.fixture
def run_faulty(shared_engine: SharedEngine, directory: Path) -> Callable[..., None]:
    def run(fault: Fault | None, **model: Any) -> None:
        shared_engine.sender = None if fault is None else Sender(fault)
        model = {"name": str(directory), "device": "cpu", **model}
        run_steps(LocalBackend(), make_context(engine=shared_engine, model=model), make_check())

    return run


@pytest.mark.parametrize("name", CLEAN)
def test_correct_weights_give_no_alarm(
    name: str, run_faulty: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    run_faulty(None, **CLEAN[name])
    assert "has the trained weights: log-probs are equal up to rounding" in capsys.readouterr().err


@pytest.mark.parametrize("name", FAULTS)
def test_fault_stops_the_run_at_its_sync(name: str, run_faulty: Callable[..., None]) -> None:
    fault, expected = FAULTS[name]
    with pytest.raises(BackendError) as raised:
        run_faulty(fault, **expected.sections.get("model", {}))
    message = raised.value.message
    assert (raised.value.code, expected.text in message) == (expected.code, True), message
    assert message.startswith(f"After weight sync {FIRST}, replica 0 ")


def test_digests_have_names_of_the_checkpoint(runner: asyncio.Runner, hosting: HostedSampler, vllm: VllmEngine) -> None:
    sent = asyncio.run(hosting.sent_digests(None))  # type: ignore[arg-type]
    own = runner.run(vllm.digests("replica 0"))
    assert (set(sent), own) == (set(own), sent)


def test_scores_are_the_log_probs_of_samples(runner: asyncio.Runner, hosting: HostedSampler, vllm: VllmEngine) -> None:
    runner.run(hosting.sync_weights(1))
    prompts = [[5, 6, 7, 8, 9], [9, 8, 7, 6, 5]]
    sampled = [
        runner.run(vllm.generate(prompt, SamplingParams(max_tokens=40, seed=seed), session="score"))
        for seed, prompt in enumerate(prompts)
    ]
    length = min(len(each.token_ids) for each in sampled)
    rows = [[*prompt, *each.token_ids[:length]] for prompt, each in zip(prompts, sampled, strict=True)]
    (scores,) = runner.run(vllm.score(Probe(tokens=np.array(rows, np.int32), prompt=5))).values()
    expected = np.concatenate([each.logprobs[:length] for each in sampled])
    np.testing.assert_allclose(scores, expected, atol=1e-5, rtol=0)


def test_longest_row_is_scored(runner: asyncio.Runner, vllm: VllmEngine) -> None:
    probe = Probe(tokens=np.full((1, MAX_CONTEXT - 1), 5, np.int32), prompt=1)
    (scores,) = runner.run(vllm.score(probe)).values()
    assert scores.shape == (MAX_CONTEXT - 2,)
    assert bool(torch.isfinite(torch.from_numpy(scores)).all())
