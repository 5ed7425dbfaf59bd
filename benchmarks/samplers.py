"""Tokens until a model reaches a held-out pass rate on `reasoning_gym:chain_sum`, levels 1 to 6, per sampler and seed.

python benchmarks/samplers.py                                       # `tiny`, each sampler, seeds 0, 1 and 2
python benchmarks/samplers.py --model ./some-hf-folder --seeds 0 --samplers levels -- rllm.trainer.total_batches=50

The model must solve some tasks of level 1. `tiny` first learns from examples of this level (`rllm sft`, once for all
runs). Tokens are the prompts and responses of all training steps before the first validation that reaches the
threshold. A validation has the same number of held-out tasks at each level.
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

from reasoning_gym import create_dataset

from rllm_envs.reasoning_gym.environment import ReasoningGym
from rllm_envs.reasoning_gym.options import ReasoningGymParams

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
TINY = (
    "data.max_response_length=6",
    "training.learning_rate=5e-4",
    "rllm.rollout.n=8",
    "data.train_batch_size=32",
    "rllm.trainer.total_batches=100",
)
"""Settings of the training that starts with `tiny`."""
FINE_TUNING = (
    "training.learning_rate=3e-3",
    "training.lr_schedule=cosine",
    "data.train_batch_size=64",
    "rllm.trainer.save_freq=-1",
    "rllm.record=off",
)
EXAMPLES_SEED = 1_000_000
"""Seed of the examples. Neither the training tasks nor the held-out tasks have it."""


def write_examples(path: Path, count: int) -> None:
    """Write entries of level 1 with their answers, as the environment asks them."""
    params = ReasoningGymParams(generator="chain_sum", level=1, seed=EXAMPLES_SEED, train_size=count)
    source = dict(ReasoningGym.tasks("train", params)[0].data)
    entries = create_dataset(source["generator"], seed=source["seed"], size=count, **source["config"])
    with path.open("w", encoding="utf-8") as file:
        for index in range(count):
            question = {"role": "user", "content": params.template.replace("{question}", entries[index]["question"])}
            answer = {"role": "assistant", "content": entries[index]["answer"]}
            file.write(json.dumps({"messages": [question, answer]}) + "\n")


def warm_up(directory: Path, examples: int, epochs: int) -> str:
    """Fine-tune `tiny` on examples of level 1, and return the folder of its weights."""
    write_examples(directory / "examples.jsonl", examples)
    command = [sys.executable, "-m", "rllm.cli.main", "sft", "--data", str(directory / "examples.jsonl"), *FINE_TUNING]
    command += [f"rllm.trainer.total_epochs={epochs}", f"rllm.trainer.output_dir={directory}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return str(directory / "rllm-sft/default/checkpoints/latest")


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
    parser.add_argument("--model", help="folder or name of the model to train; the default is `tiny` after fine-tuning")
    parser.add_argument("--examples", type=int, default=20_000, help="examples of level 1 for `tiny`")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the examples")
    parser.add_argument("--threshold", type=float, default=0.5, help="held-out pass@1 to reach")
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("overrides", nargs="*", help="further key=value overrides, after --")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        overrides = arguments.overrides if arguments.model else [*TINY, *arguments.overrides]
        model = arguments.model or warm_up(Path(directory), arguments.examples, arguments.epochs)
        compare(model, arguments, overrides)


def compare(model: str, arguments: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Train the model with each sampler and seed, and print the tokens."""
    for seed in arguments.seeds:
        uniform: int | None = None
        for sampler in arguments.samplers:
            lines = train(model, sampler, seed, overrides)
            tokens = count_tokens_to(arguments.threshold, lines)
            uniform = tokens if sampler == "uniform" else uniform
            ratio = f", {tokens / uniform:.2f} of uniform" if tokens is not None and uniform else ""
            best = max((line[PASS_RATE] for line in lines if PASS_RATE in line), default=0.0)
            reached = "not reached" if tokens is None else f"reached after {tokens:,} tokens"
            print(f"seed {seed} {sampler}: {reached}{ratio}, best pass@1 {best:.3f}", flush=True)


if __name__ == "__main__":
    main()
