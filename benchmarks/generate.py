"""CPU time and peak memory of `generate` of the backend `local`, next to a second checkout in one run.

python benchmarks/generate.py                          # all workloads, this checkout
python benchmarks/generate.py --other ../before        # also the checkout in ../before, alternately, and the ratios
python benchmarks/generate.py --only long_prompts

The model has Qwen3's shape: hidden size 256, 6 layers, 4 heads of 64, 2 key heads, a vocabulary of 8,192. Each
measurement is a process with one thread. It samples once to warm up, then `--repeats` times with new prompts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 8192
Conversations = list[tuple[list[int], str]]
"""Prompts with the names of their sessions."""


def _prompt(length: int, *seeds: int) -> list[int]:
    return np.random.default_rng((length, *seeds)).integers(10, VOCABULARY, length).tolist()


def _groups(tasks: int, rollouts: int, length: int) -> Callable[[int], Conversations]:
    """Return a function from a seed to several rollouts of each of several prompts."""

    def conversations(seed: int) -> Conversations:
        prompts = [_prompt(length, task, seed) for task in range(tasks)]
        return [(prompt, f"{seed} {task} {n}") for task, prompt in enumerate(prompts) for n in range(rollouts)]

    return conversations


WORKLOADS: dict[str, tuple[Callable[[int], Conversations], int]] = {
    "long_prompts": (_groups(8, 8, 1000), 64),
    "short_prompts": (_groups(8, 8, 55), 64),
    "nothing_shared": (_groups(64, 1, 1000), 64),
    "short_responses": (_groups(64, 4, 40), 4),
}
"""Conversations by seed, and the number of new tokens of each."""


def build_model() -> Any:
    """Return the model, with random weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from rllm_local.exact_attention import use_exact_attention

    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 4}
    heads = {"num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 2048, "tie_word_embeddings": True}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, **sizes, **heads)).eval()
    use_exact_attention(model)
    return model


def measure(workload: str, repeats: int) -> dict[str, float]:
    """Return the median CPU seconds of a repeat, and the process's peak memory without the model's in MiB."""
    import torch

    from rllm_core.contracts.engine import SamplingParams
    from rllm_core.rollout.template_renderer import TemplateRenderer
    from rllm_local import tiny
    from rllm_local.engine import LocalEngine
    from rllm_local.exact_attention import fix_order_of_sums

    fix_order_of_sums()
    torch.set_num_threads(1)
    conversations, n_new = WORKLOADS[workload]
    renderer = TemplateRenderer(tiny.build_tokenizer(), [])
    seconds = []
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as executor:
        limits = {"max_context": 2048, "max_concurrency": 512, "kv_cache_bytes": 2 << 30}
        engine = LocalEngine(build_model(), renderer, executor, **limits)

        async def sample(seed: int) -> list[Any]:
            async def one(number: int, prompt: list[int], session: str) -> Any:
                done = await engine.generate(prompt, SamplingParams(max_tokens=n_new, seed=number), session=session)
                await engine.end_session(session)
                return done

            return await asyncio.gather(*(one(n, *each) for n, each in enumerate(conversations(seed))))

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        asyncio.run(sample(0))
        for repeat in range(repeats):
            engine.sync_weights(repeat + 1)
            started = time.process_time()
            done = asyncio.run(sample(repeat + 1))
            seconds.append(time.process_time() - started)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    digest = sum(float(np.float64(each.logprobs).sum()) for each in done)
    return {"cpu_seconds": statistics.median(seconds), "peak_mib": peak, "sum_of_logprobs": digest}


def measure_in(checkout: Path, workload: str, repeats: int) -> dict[str, float]:
    """Return the measurement of a checkout, in a process of its own."""
    sources = [
        str(checkout / each) for each in ("plugins/rllm_local/src", "plugins/rllm_backend_kit/src", "rllm_core/src")
    ]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sources), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--measure", workload, "--repeats", str(repeats)]
    return json.loads(subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True).stdout)  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="a second checkout to compare with")
    parser.add_argument("--only", choices=tuple(WORKLOADS), help="one workload")
    parser.add_argument("--repeats", type=int, default=3, help="measured repeats of a process (default: 3)")
    parser.add_argument("--processes", type=int, default=2, help="processes of each checkout (default: 2)")
    parser.add_argument("--measure", choices=tuple(WORKLOADS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.repeats)))
        return
    here = Path(__file__).parents[1]
    for workload in [arguments.only] if arguments.only else WORKLOADS:
        found: dict[Path, list[dict[str, float]]] = {}
        for _ in range(arguments.processes):
            for checkout in (here, arguments.other) if arguments.other else (here,):
                found.setdefault(checkout, []).append(measure_in(checkout, workload, arguments.repeats))
        medians = {
            checkout: {key: statistics.median(each[key] for each in runs) for key in runs[0]}
            for checkout, runs in found.items()
        }
        for checkout, values in medians.items():
            print(
                f"{workload}, {checkout.resolve().name}: " + ", ".join(f"{k} {v:.3f}" for k, v in values.items()),
                flush=True,
            )
        if arguments.other:
            ratios = {key: medians[here][key] / medians[arguments.other][key] for key in ("cpu_seconds", "peak_mib")}
            print(f"{workload}, ratio: " + ", ".join(f"{k} {v:.3f}" for k, v in ratios.items()), flush=True)


if __name__ == "__main__":
    main()
