"""Checks on any training device: correct samples, the CPU's gradients, one model for sampler and trainer."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from local_models import fill_columns, make_plan, random_batch

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_local.engine import LocalEngine
from rllm_local.memory import Load, memory_parts
from rllm_local.settings import LocalConfig, TrainedModelSection, TrainingSection

PROMPT = [11, 12, 13, 14]
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}


def sample(engine: LocalEngine, count: int, length: int, **sampling: Any) -> list[Completion]:
    """Responses to `PROMPT`, a seed each."""

    async def ask() -> list[Completion]:
        params = [SamplingParams(max_tokens=length, seed=seed, **sampling) for seed in range(count)]
        return list(
            await asyncio.gather(
                *(engine.generate(PROMPT, each, session=str(seed)) for seed, each in enumerate(params))
            )
        )

    return asyncio.run(ask())


@pytest.mark.parametrize("temperature", [0.5])
def test_samples_are_drawn_from_the_models_distribution(
    temperature: float,
    device: torch.device,
    make_training_model: Callable[..., Any],
    make_engine: Callable[..., LocalEngine],
) -> None:
    """A chi-square test over tokens that are expected at least five times, the others as one."""
    count, model = 4000, make_training_model(device).model
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(10)  # so that tokens differ in how likely they are
        logits = model(input_ids=torch.tensor([PROMPT]).to(device), use_cache=False).logits[0, -1].double().cpu()
    expected = (logits / temperature).softmax(-1).numpy() * count
    responses = sample(make_engine(model, max_concurrency=512), count, 1, temperature=temperature)
    found = np.bincount([int(response.token_ids[0]) for response in responses], minlength=len(expected))
    often = expected >= 5
    assert often.sum() >= 8
    cells = [(found[often], expected[often])]
    if expected[~often].sum() >= 5:
        cells.append((found[~often].sum(keepdims=True), expected[~often].sum(keepdims=True)))
    statistic = sum(float(((seen - wanted) ** 2 / wanted).sum()) for seen, wanted in cells)
    freedom = sum(len(seen) for seen, _ in cells) - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("device", ["pretend", pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_are_those_of_the_cpu(
    dtype: str, rank: int, device: torch.device, make_training_model: Callable[..., Any], batch: TokenBatch
) -> None:
    found = []
    for where in (torch.device("cpu"), device):
        trained = make_training_model(where, dtype, rank)
        trained.updater.update(batch, make_plan())
        found.append(trained.gradients())
    expected, gradient = found
    assert expected.norm() > 0
    assert float((gradient - expected).norm() / expected.norm()) < TOLERANCE[dtype]


@pytest.mark.parametrize(("dtype", "rank", "tolerance"), [("float32", 0, 1e-5), ("bfloat16", 8, 1e-3)])
def test_trainer_recomputes_sampled_log_probs_on_the_device(
    dtype: str,
    tolerance: float,
    rank: int,
    device: torch.device,
    make_training_model: Callable[..., Any],
    make_engine: Callable[..., LocalEngine],
) -> None:
    """On average over tokens: a cache sums in a different order, so bfloat16 rounds to a different number."""
    model = make_training_model(device, dtype, rank).model
    trajectories = []
    for response in sample(make_engine(model), 16, 24, temperature=1.0):
        trajectories.append(Trajectory("agent", reward=0.0))
        trajectories[-1].add_step(PROMPT, response.token_ids, response.logprobs)
    batch = fill_columns(model, build_batch([TrajectoryGroup(group_id="t:agent", trajectories=trajectories)]))
    assert batch.old_logprobs is not None
    difference = (batch.old_logprobs - batch.sampling_logprobs)[batch.loss_mask]
    assert abs(float(difference.mean())) < tolerance
    assert float(np.abs(difference).mean()) < 10 * tolerance


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("rank", "recompute"), [(0, False), (0, True), (8, False)])
def test_peak_memory_is_what_the_dry_run_announces(
    dtype: Any,
    rank: int,
    recompute: bool,
    device: torch.device,
    sizes: dict[str, int],
    make_training_model: Callable[..., Any],
) -> None:
    """Bytes per parameter and per token together, within a tenth on devices."""
    others = 0 if device.type == "cpu" else torch.get_device_module(device).memory_allocated(device)
    trained = make_training_model(device, dtype, rank, gradient_checkpointing=recompute, max_tokens_per_microbatch=1024)
    section = TrainedModelSection(dtype=dtype, lora_rank=rank)
    training = TrainingSection(gradient_checkpointing=recompute)
    exact = device.type == "cpu"
    load = Load(
        micro_batch_tokens=1024, sampled_tokens=1024, cached_tokens=0, reference=False, critic=False, exact=exact
    )
    config = type(trained.model.config)(**sizes, bos_token_id=None)
    expected = sum(memory_parts(config, LocalConfig(model=section, training=training), load).values())
    long_rows = random_batch([(1, 255)] * 12, vocabulary=sizes["vocab_size"])
    trained.updater.update(long_rows, make_plan())
    peak = _peak(device, trained, lambda: trained.updater.update(long_rows, make_plan())) - others
    assert expected == pytest.approx(peak, rel=0.25 if exact else 0.1)


def _peak(device: torch.device, trained: Any, work: Callable[[], Any]) -> int:
    """Most bytes that are allocated at once while it works, the model included."""
    if device.type != "cpu":
        memory = torch.get_device_module(device)
        memory.synchronize(device)
        memory.reset_peak_memory_stats(device)
        work()
        memory.synchronize(device)
        return int(memory.max_memory_allocated(device))
    moments = [state[name] for state in trained.updater.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    held = {each.data_ptr(): each.nbytes for each in (*trained.model.parameters(), *trained.masters, *moments)}
    spec = importlib.util.spec_from_file_location("peak_memory", Path(__file__).parents[1] / "peak_memory.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    with tool.PeakMemory() as memory:
        work()
    return sum(held.values()) + int(memory.peak)
