"""Tokens until a model reaches a held-out pass rate on `reasoning_gym:chain_sum`, levels 1 to 6, per sampler and seed.

python benchmarks/samplers.py --model ./some-hf-folder                        # each sampler, seeds 0, 1 and 2
python benchmarks/samplers.py --model ./some-hf-folder --seeds 0 --samplers levels -- rllm.trainer.total_batches=50

The model must solve some tasks of level 1. Tokens are the prompts and responses of all training steps before the first
validation that reaches the threshold. A validation has the same number of held-out tasks at each level.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

SAMPLERS = {
    "uniform": "uniform",
    "difficulty": "{name: difficulty, key: level}",
    "thompson": "{name: thompson, key: level}",
    "drop_solved": "drop_solved",
    "levels": "{name: levels, window: 2}",
}
PASS_RATE = "val/chain_sum/pass@1"
SETTINGS = (
    "rllm.env.env_args.levels=[1,2,3,4,5,6]",
    "rllm.env.env_args.train_size=6000",
    "rllm.env.env_args.val_size=192",
    "rllm.trainer.test_freq=5",
    "rllm.trainer.save_freq=-1",
    "rllm.record=off",
)


def count_tokens_to(threshold: float, lines: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the number of tokens before the first validation that reaches the threshold. None if none does."""
    tokens = 0
    for metrics in lines:
        tokens += int(metrics.get("batch/tokens", 0))
        if metrics.get(PASS_RATE, -1.0) >= threshold:
            return tokens
    return None


def train(model: str, sampler: str, seed: int, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Train once in a temporary folder, and return the lines of `metrics.jsonl`."""
    command = [sys.executable, "-m", "rllm.cli.main", "train", "reasoning_gym:chain_sum", "--model", model]
    command += ["--sampler", SAMPLERS[sampler], "--seed", str(seed), *SETTINGS, *overrides]
    with tempfile.TemporaryDirectory() as directory:
        command.append(f"rllm.trainer.output_dir={directory}")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = (Path(directory) / "rllm-training/default/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder or name of the model to train")
    parser.add_argument("--threshold", type=float, default=0.5, help="held-out pass@1 to reach")
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("overrides", nargs="*", help="further key=value overrides, after --")
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        uniform: int | None = None
        for sampler in arguments.samplers:
            lines = train(arguments.model, sampler, seed, arguments.overrides)
            tokens = count_tokens_to(arguments.threshold, lines)
            uniform = tokens if sampler == "uniform" else uniform
            ratio = f", {tokens / uniform:.2f} of uniform" if tokens is not None and uniform else ""
            best = max((line[PASS_RATE] for line in lines if PASS_RATE in line), default=0.0)
            reached = "not reached" if tokens is None else f"reached after {tokens:,} tokens"
            print(f"seed {seed} {sampler}: {reached}{ratio}, best pass@1 {best:.3f}", flush=True)


if __name__ == "__main__":
    main()
