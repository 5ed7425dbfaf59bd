"""A rollout engine of another package: given the model and all its weights, told of every new version, and closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from local_backend import HostedCopy, run_scenario
from local_models import make_plan

from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.engine import (
    EnginePlugin,
    EngineSetup,
    HostedEngine,
    NamedTensors,
    SamplingParams,
)
from rllm_core.contracts.params import NoParams
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.errors import BackendError
from rllm_core.schema.run_config import RllmSection, RunConfig
from rllm_local.backend import LocalBackend
from rllm_local.samplers import checkpoint_weights
from rllm_local.settings import LocalConfig


class Tokenizing(HostedCopy):
    async def start(self, setup: EngineSetup) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(setup.directory)
        await super().start(setup)


class BrokenEngine(HostedCopy):
    async def start(self, setup: EngineSetup) -> None:
        raise BackendError("made-up", "It does not start.")


def _context(engine: Callable[[Any], HostedEngine], **sections: Any) -> RunContext:
    plugin = EnginePlugin(name="copy", summary="For tests.", load=lambda: engine)
    correction = {"bypass_mode": False}
    return RunContext(
        config=RunConfig(rllm=RllmSection(algorithm={"rollout_correction": correction})),  # type: ignore[arg-type]
        backend_config=LocalConfig(**({"training": {"learning_rate": 1e-2, "max_length": 200}} | sections)),
        seed=0,
        total_steps=10,
        engine=PluginChoice(registered=Registered(plugin=plugin, distribution="tests", version="0"), params=NoParams()),
    )


async def _batch(engine: HostedCopy) -> TokenBatch:
    async def rollout(index: int) -> Trajectory:
        prompt = engine.renderer.prompt([{"role": "user", "content": f"guess {index}"}])
        response = await engine.generate(prompt, SamplingParams(max_tokens=6, seed=index), session=str(index))
        trajectory = Trajectory("agent", reward=float(index % 2))
        trajectory.add_step(prompt, response.token_ids, response.logprobs, weight_version=response.weight_version)
        return trajectory

    trajectories = list(await asyncio.gather(*(rollout(index) for index in range(8))))
    batch = build_batch([TrajectoryGroup(group_id="t:agent", trajectories=trajectories)])
    advantages = np.repeat(np.where(np.arange(batch.n_rows) % 2, 1.0, -1.0), batch.row_lengths) * batch.loss_mask
    return batch.with_columns(advantages=advantages.astype(np.float32))


def test_each_sync_updates_the_sampling_weights() -> None:
    async def scenario(backend: LocalBackend, engine: HostedCopy) -> HostedCopy:
        for step in range(3):
            batch = await _batch(engine)
            assert batch.weight_version.tolist() == [step] * 8
            batch = await backend.process(batch, frozenset({"old_logprobs"}))
            assert batch.old_logprobs is not batch.sampling_logprobs
            np.testing.assert_allclose(batch.old_logprobs, batch.sampling_logprobs, atol=1e-5)
            before = torch.cat([parameter.flatten() for parameter in engine.model.parameters()])
            await backend.update(batch, make_plan(global_step=step, seed=step))
            assert torch.equal(before, torch.cat([parameter.flatten() for parameter in engine.model.parameters()]))
            await backend.sync_weights(step + 1)
        return engine

    engine = run_scenario(_context(HostedCopy), scenario)
    assert engine.calls == ["start", "load 0", "load 1", "load 2", "load 3", "close"]


def test_hosted_engine_receives_the_models_weights() -> None:
    given: dict[str, torch.Tensor] = {}

    class Keeping(HostedCopy):
        async def load_weights(self, weights: NamedTensors, version: int) -> None:
            given.update((name, tensor.clone()) for name, tensor in weights)
            await super().load_weights(given.items(), version)

    async def scenario(backend: LocalBackend, engine: HostedCopy) -> None:
        batch = await backend.process(await _batch(engine), frozenset({"old_logprobs"}))
        await backend.update(batch, make_plan())
        await backend.sync_weights(1)
        assert engine.setup.dtype == "bfloat16"
        for name, master in backend._require_started()[0].trainer.masters.named_parameters():
            assert torch.equal(given[name], master.to(torch.bfloat16))

    run_scenario(_context(Keeping, model={"dtype": "bfloat16"}), scenario)


def test_hosted_engine_receives_model_files_and_limits() -> None:
    async def scenario(backend: LocalBackend, engine: Tokenizing) -> Tokenizing:
        return engine

    engine = run_scenario(_context(Tokenizing, local={"max_concurrency": 7, "kv_cache_gib": 0.5}), scenario)
    setup = engine.setup
    assert (setup.max_context, setup.max_concurrency, setup.kv_cache_bytes) == (200, 7, 1 << 29)
    assert setup.dtype == "float32"
    assert engine.model.config.architectures == ["LlamaForCausalLM"]
    assert engine.tokenizer.decode([5, 6]) == setup.renderer.text([5, 6])
    assert not [name for name in engine.files if name.endswith("safetensors")]
    assert not setup.directory.exists()


def test_engine_that_fails_to_start_is_closed() -> None:
    made: list[BrokenEngine] = []

    def make(params: NoParams) -> BrokenEngine:
        made.append(BrokenEngine(params))
        return made[0]

    with pytest.raises(BackendError, match="does not start"):
        run_scenario(_context(make), lambda *_: asyncio.sleep(0))
    assert made[0].calls == ["close"]


@pytest.mark.parametrize("experts", [False, True])
def test_weights_are_those_of_a_saved_model(experts: bool, model: Any, tmp_path: Path) -> None:
    """A model stores the weights of all experts in one tensor. A checkpoint and its readers do not."""
    from safetensors.torch import load_file
    from transformers import MixtralConfig, MixtralForCausalLM

    if experts:
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
        model = MixtralForCausalLM(MixtralConfig(vocab_size=40, num_hidden_layers=1, num_local_experts=3, **sizes))
    model.save_pretrained(tmp_path)
    saved, given = load_file(tmp_path / "model.safetensors"), checkpoint_weights(model)
    assert given.keys() == saved.keys()
    assert all(torch.equal(given[name], saved[name]) for name in saved)
