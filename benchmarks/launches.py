"""Launches, waits and bytes of transfers on a simulated accelerator, next to plain torch and transformers.

PYTHONPATH=tests/tools python benchmarks/launches.py                 # SmolLM2-135M's shape, 64 rows: a minute
PYTHONPATH=tests/tools python benchmarks/launches.py --layers 2 --kernels

The device is `tests/tools/pretend_device.py`. It computes on the CPU, so times mean nothing, and the numbers are the
same on each machine. The model has random weights. The engine captures the second decode pass with a shape, and replays
it later. The bare decode pass is the model's forward with a static cache of transformers, softmax and multinomial. The
bare update is the model's forward, log_softmax, backward, clipping, and torch's foreach AdamW.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pretend_device
import torch
from local_models import make_plan, random_batch
from pretend_device import Counts
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

from rllm_core.contracts.engine import SamplingParams
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_local import engine as engine_module, tiny
from rllm_local.engine import LocalEngine
from rllm_local.exact_attention import use_torch_attention
from rllm_local.forward import sample_next
from rllm_local.master_weights import MasterWeights
from rllm_local.settings import TrainingSection
from rllm_local.update import Updater

PROMPT = 24
MICRO_BATCHES = 8


def build_model(layers: int, device: torch.device, vocabulary: int = 49_152) -> Any:
    """Return a model with SmolLM2-135M's layers."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).eval().to(device)
    model.tie_weights()
    return model


def count(work: Callable[[], Any]) -> Counts:
    """Return the counts of some work."""
    with pretend_device.count() as counts:
        work()
        return copy.deepcopy(counts)


def decode_passes(model: Any, rows: int, tokens: int) -> list[Counts]:
    """Return the counts of each pass of the engine that samples one token of each row. The first computes prompts."""
    use_torch_attention(model)
    passes: list[Counts] = []

    def counting(*arguments: Any) -> Any:
        draws: list[Any] = []
        passes.append(count(lambda: draws.append(sample_next(*arguments))))
        return draws[0]

    async def sample() -> None:
        prompts = np.random.default_rng(0).integers(3, 500, (rows, PROMPT))
        sampling = [SamplingParams(max_tokens=tokens, seed=row) for row in range(rows)]
        await asyncio.gather(
            *(
                engine.generate(prompt, each, session=str(row))
                for row, (prompt, each) in enumerate(zip(prompts, sampling, strict=True))
            )
        )

    engine_module.sample_next, real = counting, engine_module.sample_next
    try:
        with ThreadPoolExecutor(1) as executor:
            renderer = TemplateRenderer(tiny.build_tokenizer(), ())
            engine = LocalEngine(
                model, renderer, executor, max_context=256, max_concurrency=rows, kv_cache_bytes=1 << 30
            )
            asyncio.run(sample())
    finally:
        engine_module.sample_next = real
    return passes


@torch.inference_mode()
def bare_decode_pass(model: Any, rows: int) -> Counts:
    """Return the counts of a pass with a static cache of transformers."""
    model.set_attn_implementation("sdpa")
    device = model.device
    cache = StaticCache(config=model.config, max_cache_len=256)

    def step(width: int) -> None:
        ids = torch.ones((rows, width), dtype=torch.int64, device=device)
        logits = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        logits.softmax(-1).multinomial(1).cpu()

    step(PROMPT)
    return count(lambda: step(1))


def update(model: Any, rows: int) -> tuple[Counts, Counts]:
    """Return the counts of an update, and of its optimizer step only."""
    use_torch_attention(model)
    settings = TrainingSection(max_tokens_per_microbatch=rows * PROMPT // MICRO_BATCHES)
    masters = MasterWeights(model)
    updater = Updater(model, settings, total_steps=9, temperature=1.0, max_response_length=900, masters=masters)
    batch = random_batch([(PROMPT // 2, PROMPT // 2)] * rows, vocabulary=500)
    updater.update(batch, make_plan())
    whole = count(lambda: updater.update(batch, make_plan()))

    def step() -> None:
        updater._clipped_norms()
        updater.optimizer.step()
        masters.write()

    return whole, count(step)


def bare_update(model: Any, rows: int) -> tuple[Counts, Counts]:
    """Return the same of torch's own parts."""
    model.set_attn_implementation("sdpa")
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    parts = torch.randint(3, 500, (MICRO_BATCHES, rows // MICRO_BATCHES, PROMPT)).to(model.device)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    def work() -> None:
        optimizer.zero_grad()
        for part in parts:
            logits = model(input_ids=part, use_cache=False).logits[:, :-1]
            logprobs = logits.log_softmax(-1).gather(-1, part[:, 1:, None])
            (-logprobs.mean()).backward()
        step()

    work()
    return count(work), count(step)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=30, help="number of layers (default: 30)")
    parser.add_argument("--rows", type=int, default=64, help="number of rows (default: 64)")
    parser.add_argument("--kernels", action="store_true", help="also list the kernels of each part")
    options = parser.parse_args()
    model = build_model(options.layers, pretend_device.register())
    first, without_graph, _, replay = decode_passes(model, options.rows, 4)
    bare = bare_decode_pass(model, options.rows)
    whole, step = update(model, options.rows)
    bare_whole, bare_step = bare_update(model, options.rows)
    print(f"{'':24}{'launches':>10}{'bare':>8}{'ratio':>8}{'waits':>8}{'to device':>12}{'to host':>10}")
    for name, counts, other in (
        ("pass over prompts", first, None),
        ("decode pass", without_graph, bare),
        ("replayed decode pass", replay, bare),
        ("update", whole, bare_whole),
        ("optimizer step", step, bare_step),
    ):
        ratio = f"{other.launches:8}{counts.launches / other.launches:8.2f}" if other else f"{'':16}"
        print(
            f"{name:24}{counts.launches:10}{ratio}{counts.waits.total():8}"
            f"{counts.bytes_to_device:12,}{counts.bytes_to_host:10,}"
        )
        if options.kernels:
            for what, found in (
                ("waits", counts.waits),
                ("ours", counts.kernels),
                *([("bare", other.kernels)] if other else []),
            ):
                print(f"  {what}: " + ", ".join(f"{kernel} {n}" for kernel, n in found.most_common()))
    tokens = options.rows
    print(
        f"bytes per sampled token in a decode pass: {replay.bytes_to_device / tokens:.0f} to the device, "
        f"{replay.bytes_to_host / tokens:.0f} to the host"
    )


if __name__ == "__main__":
    main()
