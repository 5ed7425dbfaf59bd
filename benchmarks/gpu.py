"""Tokens per second of the backend `local` on a device, next to floors: ``python benchmarks/gpu.py``.

- sampling: the engine, next to `generate` of transformers, and next to vLLM if it is installed
- updates: an update, next to a bare loop over the same tokens (forward, cross-entropy, backward, AdamW)

The model has random weights. No CUDA device has run this yet. `--device cpu --hidden 128 --layers 2` runs it anywhere.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from rllm_core.algorithms.options import PpoParams
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.engine import SamplingParams
from rllm_core.contracts.loss import LossPlugin
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.updates import losses
from rllm_local.engine import LocalEngine
from rllm_local.exact_attention import use_torch_attention
from rllm_local.master_weights import MasterWeights
from rllm_local.settings import TrainingSection
from rllm_local.tiny import build_tokenizer
from rllm_local.update import Updater


def build(options: argparse.Namespace) -> tuple[Any, MasterWeights]:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    heads = max(2, options.hidden // 64)
    config = Qwen3Config(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=64,
        bos_token_id=None,
        pad_token_id=0,
        eos_token_id=None,
    )
    model = Qwen3ForCausalLM(config).eval().to(options.device)
    use_torch_attention(model)
    return model, MasterWeights.from_float32(model, getattr(torch, options.dtype))


def random_batch(options: argparse.Namespace) -> TokenBatch:
    generator = np.random.default_rng(0)
    group = TrajectoryGroup(group_id="t:agent", trajectories=[])
    for _ in range(options.rows):
        trajectory = Trajectory("agent", reward=0.0)
        prompt, response = (
            generator.integers(3, options.vocabulary, size) for size in (options.prompt, options.response)
        )
        trajectory.add_step(prompt.tolist(), response, np.full(options.response, -3.0, np.float32))
        group.trajectories.append(trajectory)
    batch = build_batch([group])
    advantages = generator.normal(0, 1, len(batch.tokens)).astype(np.float32) * batch.loss_mask
    return batch.with_columns(advantages=advantages, old_logprobs=batch.sampling_logprobs)


def ppo_plan() -> UpdatePlan:
    plugin: LossPlugin[Any] = LossPlugin(name="ppo", summary="", load_params=lambda: PpoParams, load=lambda: losses.ppo)
    chosen = PluginChoice(registered=Registered(plugin=plugin, distribution="x", version="0"), params=PpoParams())
    return UpdatePlan(losses={"agent": chosen}, global_step=0, aggregation="token-mean", entropy_coeff=0.0, seed=0)


def bare_update(model: Any, optimizer: torch.optim.Optimizer, batch: TokenBatch, options: argparse.Namespace) -> None:
    """Return a batch whose rows have the same length."""
    ids = torch.from_numpy(batch.tokens.astype(np.int64)).view(options.rows, -1).to(model.device)
    optimizer.zero_grad(set_to_none=True)
    size = max(1, options.microbatch // ids.shape[1])
    for part in ids.split(size):
        logits = model(input_ids=part[:, :-1], use_cache=False).logits[:, options.prompt - 1 :].float()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), part[:, options.prompt :].flatten()).backward()
    optimizer.step()


def engine_sampling(model: Any, options: argparse.Namespace) -> Callable[[], object]:
    executor = ThreadPoolExecutor(max_workers=1)
    engine = LocalEngine(
        model,
        TemplateRenderer(build_tokenizer(), ()),
        executor,
        max_context=options.prompt + options.response,
        max_concurrency=options.rows,
        kv_cache_bytes=8 << 30,
    )
    prompt = list(range(3, 3 + options.prompt))

    async def ask() -> None:
        params = [SamplingParams(max_tokens=options.response, seed=seed) for seed in range(options.rows)]
        calls = (engine.generate(prompt, each, session=str(number)) for number, each in enumerate(params))
        await asyncio.gather(*calls)
        for number in range(options.rows):
            await engine.end_session(str(number))

    return lambda: asyncio.run(ask())


def transformers_sampling(model: Any, options: argparse.Namespace) -> Callable[[], object]:
    ids = torch.arange(3, 3 + options.prompt, device=model.device).repeat(options.rows, 1)
    length = options.response
    return lambda: model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, min_new_tokens=length, max_new_tokens=length
    )


def vllm_sampling(model: Any, options: argparse.Namespace) -> Callable[[], object]:
    import vllm  # type: ignore[import-not-found,unused-ignore]

    directory = tempfile.mkdtemp(prefix="rllm-gpu-")
    model.save_pretrained(directory)
    server = vllm.LLM(directory, skip_tokenizer_init=True, dtype=options.dtype, gpu_memory_utilization=0.3)
    params = vllm.SamplingParams(max_tokens=options.response, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": list(range(3, 3 + options.prompt))}] * options.rows
    return lambda: server.generate(prompts, params, use_tqdm=False)


def seconds(works: dict[str, Callable[[], object]], device: torch.device, repeats: int) -> dict[str, float]:
    """Return median seconds. The works run alternately, each after one warm-up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(repeats + 1):
        for name, work in works.items():
            started = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if repeat:
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    sizes = {"hidden": 1024, "layers": 24, "vocabulary": 151_936, "rows": 64, "prompt": 128, "response": 256}
    for name, value in (sizes | {"microbatch": 8192, "repeats": 3}).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    device = torch.device(options.device)
    model, masters = build(options)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} million weights, {options.dtype} on {device}")

    sampling = {"engine": engine_sampling(model, options), "transformers": transformers_sampling(model, options)}
    if device.type == "cuda" and find_spec("vllm") is not None:
        sampling["vLLM"] = vllm_sampling(model, options)
    report("sampling", seconds(sampling, device, options.repeats), options.rows * options.response)

    batch, plan = random_batch(options), ppo_plan()
    section = TrainingSection(max_tokens_per_microbatch=options.microbatch)
    updater = Updater(model, section, total_steps=9, temperature=1.0, max_response_length=4096, masters=masters)
    updates = {
        "update": lambda: updater.update(batch, plan),
        "bare loop": lambda: bare_update(model, updater.optimizer, batch, options),
    }
    report("updates", seconds(updates, device, options.repeats), len(batch.tokens))


def report(what: str, found: dict[str, float], tokens: int) -> None:
    for name, each in found.items():
        print(f"{what:10} {name:14} {tokens / each:12,.0f} tokens/s  {each / min(found.values()):6.2f} x the fastest")


if __name__ == "__main__":
    main()
