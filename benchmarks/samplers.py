"""Tokens until a model reaches a held-out pass rate, per sampler and seed.

python benchmarks/samplers.py                       # `tiny` learns `sum` from random weights, seeds 0, 1 and 2
python benchmarks/samplers.py --model ./some-hf-directory --seeds 0 -- rllm.trainer.total_batches=50

With `--model`, the environment is `reasoning_gym:chain_sum`, levels 1 to 6, because a random model cannot solve any of
its tasks. Tokens are the prompts and responses of all training steps before the first validation that reaches the
threshold.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Setup(NamedTuple):
    """An environment, and the column of its tasks that samplers use."""

    environment: str
    source: str
    key: str
    words: tuple[str, ...]


SUM = Setup("sum", "sum", "a", ("rllm.trainer.total_epochs=75", "rllm.trainer.test_freq=5"))
CHAIN_SUM = Setup(
    "reasoning_gym:chain_sum",
    "chain_sum",
    "level",
    (
        "rllm.env.env_args.levels=[1,2,3,4,5,6]",
        "rllm.env.env_args.train_size=6000",
        "rllm.env.env_args.val_size=192",
        "rllm.trainer.test_freq=5",
    ),
)
SAMPLERS = {
    "uniform": "uniform",
    "difficulty": "difficulty",
    "difficulty of keys": "{{name: difficulty, key: {key}}}",
    "thompson": "thompson",
    "thompson of keys": "{{name: thompson, key: {key}}}",
    "drop_solved": "drop_solved",
    "levels": "{{name: levels, key: {key}, window: 2}}",
}


def count_tokens_to(threshold: float, pass_rate: str, lines: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the number of tokens before the first validation that reaches the threshold. None if none does."""
    tokens = 0
    for metrics in lines:
        tokens += int(metrics.get("batch/tokens", 0))
        if metrics.get(pass_rate, -1.0) >= threshold:
            return tokens
    return None


def train(setup: Setup, sampler: str, seed: int, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Train once in a temporary directory, and return the lines of `metrics.jsonl`."""
    command = [sys.executable, "-m", "rllm.cli.main", "train", setup.environment, "--seed", str(seed)]
    command += ["--sampler", SAMPLERS[sampler].format(key=setup.key), *setup.words, *overrides]
    command += ["rllm.trainer.save_freq=-1", "rllm.record=off"]
    with tempfile.TemporaryDirectory() as directory:
        command.append(f"rllm.trainer.output_dir={directory}")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (file,) = Path(directory).glob("rllm-training/*/metrics.jsonl")
        lines = file.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="directory or name of the model that trains on chain_sum")
    parser.add_argument("--threshold", type=float, default=0.5, help="held-out pass@1 to reach")
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("overrides", nargs="*", help="further key=value overrides, after --")
    arguments = parser.parse_args()
    setup, overrides = SUM, arguments.overrides
    if arguments.model:
        setup, overrides = CHAIN_SUM, ["--model", arguments.model, *overrides]
    pass_rate = f"val/{setup.source}/pass@1"
    for seed in arguments.seeds:
        uniform: int | None = None
        for sampler in arguments.samplers:
            lines = train(setup, sampler, seed, overrides)
            tokens = count_tokens_to(arguments.threshold, pass_rate, lines)
            uniform = tokens if sampler == "uniform" else uniform
            ratio = f", {tokens / uniform:.2f} of uniform" if tokens is not None and uniform else ""
            best = max((line[pass_rate] for line in lines if pass_rate in line), default=0.0)
            reached = "not reached" if tokens is None else f"reached after {tokens:,} tokens"
            print(f"seed {seed} {sampler}: {reached}{ratio}, best pass@1 {best:.3f}", flush=True)


if __name__ == "__main__":
    main()
