"""Cost of the Tinker API on one machine: our server over bare torch, over the engine in process, and a whole run.

python benchmarks/tinker_api.py       # four lines of values, about five minutes

All measurements alternate in one run. The result is the ratio of the medians. The server is its own process. The real
client calls it over HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ["TINKER_TELEMETRY"] = "0"
import numpy as np
import tinker
import torch
from tinker import types

from rllm_core.contracts.engine import SamplingParams
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_local.engine import LocalEngine
from rllm_local.model import LoadedModel, load_model
from rllm_local.settings import ModelSection
from rllm_tinker.backend import LocalServer

RANK = 32
CONCURRENT, NEW_TOKENS = 64, 64
ROWS, LENGTH = 256, 64
GIB = 1 << 30
MIB = 1 << 20


def time_alternately(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each. They are called alternately, after one call that is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if number:
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def rows() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(4, 40, LENGTH + 1).tolist() for _ in range(ROWS)]


def bare_lora_loop(loaded: LoadedModel) -> Callable[[], None]:
    """Forward and backward of the same LoRA model, in as many rows at once as fit well. No framework, no server."""
    from peft import LoraConfig, inject_adapter_in_model

    projections = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
    model = inject_adapter_in_model(LoraConfig(r=RANK, lora_alpha=32, target_modules=projections), loaded.model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "lora_" in name
    tokens = torch.tensor(rows())

    def step() -> None:
        for part in tokens.split(64):
            logits = model(input_ids=part[:, :-1], use_cache=False).logits
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum").backward()

    return step


def through_server(client: tinker.ServiceClient) -> Callable[[], None]:
    training = client.create_lora_training_client(base_model="tiny", rank=RANK).result()
    data = [
        types.Datum(
            model_input=types.ModelInput.from_ints(row[:-1]),
            loss_fn_inputs={"target_tokens": row[1:], "weights": [1.0] * LENGTH},
        )
        for row in rows()
    ]
    return lambda: training.forward_backward(data, "cross_entropy").result()


def sampling_in_process(loaded: LoadedModel) -> Callable[[], None]:
    executor = ThreadPoolExecutor(1)
    engine = LocalEngine(
        loaded.model,
        TemplateRenderer(loaded.tokenizer, ()),
        executor,
        max_context=loaded.max_context,
        max_concurrency=512,
        kv_cache_bytes=GIB,
    )

    async def sample() -> None:
        async def one(seed: int) -> None:
            await engine.generate([5, 6, 7], SamplingParams(max_tokens=NEW_TOKENS, seed=seed), session=str(seed))
            await engine.end_session(str(seed))

        await asyncio.gather(*(one(seed) for seed in range(CONCURRENT)))

    runner = asyncio.Runner()
    return lambda: runner.run(sample())


def sampling_through_server(client: tinker.ServiceClient) -> Callable[[], None]:
    sampler = client.create_sampling_client(base_model="tiny").result()
    prompt = types.ModelInput.from_ints([5, 6, 7])

    def sample() -> None:
        params = [types.SamplingParams(max_tokens=NEW_TOKENS, seed=seed, stop=[]) for seed in range(CONCURRENT)]
        for future in [sampler.sample(prompt, 1, one) for one in params]:
            future.result()

    return sample


def resident_megabytes(process: int, what: str) -> float:
    """Return the resident memory: ``VmRSS`` now, ``VmHWM`` the peak so far."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / MIB


def steps_per_second(words: list[str], steps: int, directory: str) -> float:
    """Measure `rllm train guess` as a user runs it."""
    from floor import framework_seconds

    from rllm.config.compose import compose
    from rllm.config.layers import layers_from_overrides
    from rllm_core.plugins.registry import Registry

    registry = Registry.load()
    words = [
        *words,
        "rllm.env.name=guess",
        f"rllm.trainer.total_batches={steps}",
        f"rllm.trainer.output_dir={directory}",
        "rllm.trainer.val_before_train=false",
        "rllm.trainer.logger=[]",
    ]
    return steps / framework_seconds(compose(registry, layers_from_overrides(words)), registry).wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="repeats of each measurement (default: 7)")
    parser.add_argument("--steps", type=int, default=30, help="training steps of each run (default: 30)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory, asyncio.Runner() as runner:
        server = runner.run(LocalServer.start(model="tiny", checkpoints=directory, seed=0, longest=60.0))
        at_start = resident_megabytes(server.process.pid, "VmRSS")
        client = tinker.ServiceClient(base_url=server.url, api_key=server.api_key)
        calls = {"bare": bare_lora_loop(load_model(ModelSection(), 0)), "server": through_server(client)}
        found = time_alternately(calls, arguments.repeats)
        tokens = ROWS * LENGTH
        print(
            f"forward/backward: {tokens / found['bare']:,.0f} tokens/s bare torch with the same LoRA, "
            f"{tokens / found['server']:,.0f} through the server, ratio {found['bare'] / found['server']:.2f} "
            "(target 0.7)"
        )
        calls = {
            "engine": sampling_in_process(load_model(ModelSection(), 0)),
            "server": sampling_through_server(client),
        }
        found = time_alternately(calls, arguments.repeats)
        tokens = CONCURRENT * NEW_TOKENS
        print(
            f"{CONCURRENT} samples of {NEW_TOKENS} tokens: {tokens / found['engine']:,.0f} tokens/s by the engine in "
            f"process, {tokens / found['server']:,.0f} through the server, ratio "
            f"{found['engine'] / found['server']:.2f} (target 0.7)"
        )
        now, most = (resident_megabytes(server.process.pid, what) for what in ("VmRSS", "VmHWM"))
        print(f"server, resident: {at_start:.0f} MB at start, {now:.0f} MB now, {most:.0f} MB at most (target 700)")
        client.close("success").result()
        runner.run(server.stop())
    with tempfile.TemporaryDirectory() as directory:
        tinker_words = [
            "rllm.backend=tinker",
            "tinker_base_url=local",
            f"training.default_local_dir={directory}/states",
        ]
        local, ours = [], []
        for _ in range(3):
            local.append(steps_per_second([], arguments.steps, directory))
            ours.append(steps_per_second(tinker_words, arguments.steps, directory))
        ratios = sorted(mine / theirs for mine, theirs in zip(ours, local, strict=True))
        print(
            f"rllm train guess: {max(local):.2f} steps/s with backend local, {max(ours):.2f} with backend tinker and a "
            f"local server, ratio {ratios[1]:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}; target 0.4)"
        )


if __name__ == "__main__":
    main()
