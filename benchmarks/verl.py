"""Overhead of the backend verl: its start, the conversion of a batch for workers, and a step, next to verl's own.

python benchmarks/verl.py             # about four minutes

All measurements alternate in one run on one machine. The result is the ratio. Steps are those of `rllm train` with
``--profile cpu`` and of `verl.trainer.main_ppo` on the same model directory, prompts, numbers of rows, lengths,
minibatches and micro-batches, with one training process and one rollout server each. verl's is the trainer of
``trainer.use_v1=false``, because the other one needs TransferQueue, which verl does not install.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ["VERL_PLATFORM"] = "cpu"
os.environ.setdefault("VERL_LOGGING_LEVEL", "WARNING")
# This file has the library's name, and Python looks into its directory first.
sys.path.append(sys.path.pop(0))

import torch
from measuring import keep_freed_memory
from verl_conversion import against_padding, growth
from verl_padded import RowLimits
from verl_sides.workload import Workload
from verl_start import start_seconds
from verl_steps import StepCost, median, step_costs

from rllm_local import tiny
from rllm_verl.quiet import quieten

ROWS, LIMITS = 512, RowLimits(prompt=512, response=2048)
FACTORS = (1, 4, 16)
RANKS = 8
MS = 1000


def start() -> None:
    with tempfile.TemporaryDirectory(prefix="rllm-verl-") as directory:
        phases = start_seconds(Path(directory))
    print(f"from the command to the first step: {sum(phases.values()):.1f} s")
    for phase, seconds in phases.items():
        print(f"  {phase}: {seconds:.1f} s")


def conversion(repeats: int) -> None:
    found = {name: seconds * MS for name, seconds in against_padding(ROWS, LIMITS, repeats).items()}
    length = LIMITS.prompt + LIMITS.response
    print(
        f"conversion of {ROWS} rows of {length:,} tokens: {found['padded']:.0f} ms padded first (from verl's lists), "
        f"{found['ours']:.1f} ms ours (from the batch), ratio {found['padded'] / found['ours']:.0f} (target 5)"
    )
    print(
        f"  both from arrays: {found['padded from arrays']:.0f} ms and {found['ours']:.1f} ms, "
        f"ratio {found['padded from arrays'] / found['ours']:.1f}; "
        f"both from lists: {found['padded']:.0f} ms and {found['ours from lists']:.0f} ms, "
        f"ratio {found['padded'] / found['ours from lists']:.1f}"
    )
    seconds = growth(ROWS, LIMITS, FACTORS, RANKS, repeats)
    each = {rows: value / rows * 1e6 for rows, value in seconds.items()}
    most, fewest = max(each), min(each)
    print(
        f"growth, dealt to {RANKS} ranks: "
        + ", ".join(f"{rows:,} rows {value * MS:.0f} ms ({each[rows]:.0f} µs each)" for rows, value in seconds.items())
        + f"; a row of {most:,} over one of {fewest}: {each[most] / each[fewest]:.2f} (linear is 1)"
    )


def workload(directory: Path, steps: int, minibatches: int) -> Workload:
    tokenizer = tiny.build_tokenizer()
    tiny.build_model(len(tokenizer), 0).save_pretrained(directory / "model")
    tokenizer.save_pretrained(directory / "model")
    return Workload(
        model=str(directory / "model"),
        directory=str(directory),
        steps=steps,
        prompts=16,
        rollouts=8,
        repeats=2,
        max_response_length=64,
        minibatches=minibatches,
        micro_batch_tokens=1024,
    )


def steps(number: int, minibatches: int) -> None:
    with tempfile.TemporaryDirectory(prefix="rllm-verl-") as directory:
        work = workload(Path(directory), number, minibatches)
        costs = step_costs(work.to_json(), number, Path(directory))
    ours, theirs = costs["ours"], costs["theirs"]
    print(
        f"{len(ours)} steps of each trainer, alternately: {work.prompts * work.rollouts} rows in {minibatches} "
        f"minibatches; {median(ours, 'tokens'):,.0f} tokens a step ours, {median(theirs, 'tokens'):,.0f} verl's own"
    )
    _print("driver, from responses to the gradient step", "driver", ours, theirs)
    _print("driver, with metrics, logging and the next prompts", "around", ours, theirs)
    _print("whole step without generation", "without_generation", ours, theirs)
    whole, of_verl = median(ours, "whole"), median(theirs, "whole")
    print(f"  steps per second: {1 / whole:.2f} ours, {1 / of_verl:.2f} verl, ratio {of_verl / whole:.2f}")


def _print(what: str, name: str, ours: list[StepCost], theirs: list[StepCost]) -> None:
    mine, others = (median(costs, name) * MS for costs in (ours, theirs))
    pairs = sorted(getattr(one, name) / getattr(other, name) for one, other in zip(ours, theirs, strict=True))
    print(
        f"  {what}: {mine:.0f} ms ours, {others:.0f} ms verl, ratio {mine / others:.2f} "
        f"({pairs[0]:.2f} to {pairs[-1]:.2f} by pairs of steps)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="repeats of each conversion (default: 5)")
    parser.add_argument("--steps", type=int, default=9, help="steps of each trainer, two to warm up (default: 9)")
    parser.add_argument("--minibatches", type=int, default=1, help="optimizer steps per step (default: 1)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    quieten()
    start()
    conversion(arguments.repeats)
    steps(arguments.steps, arguments.minibatches)


if __name__ == "__main__":
    main()
