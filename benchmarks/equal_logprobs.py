"""Difference between the log-probs of sampler and trainer of `local` on a CPU, and the cost of equal log-probs.

python benchmarks/equal_logprobs.py difference          # guess, with three settings of kernels, one must differ
python benchmarks/equal_logprobs.py difference smollm2  # a model of SmolLM2-135M's shape, 20 steps
python benchmarks/equal_logprobs.py cost                # CPU time of a step: exact attention ÷ torch's attention
python benchmarks/equal_logprobs.py cost smollm2

`difference` trains with `rllm.record=tokens`. `rllm record check` then compares the sampled log-probs with the
log-probs of each step's first optimizer step. `cost` trains alternately with both attentions in one process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests/tools"))

import smollm2
import torch

import rllm_local.model as loading
from rllm.config.compose import compose
from rllm.config.layers import layers_from_overrides
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.train_step import TrainStep
from rllm_core.plugins.registry import Registry

KERNELS = {
    "this processor's": {},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2,STRICT"},
    "without vector instructions": {"ATEN_CPU_CAPABILITY": "default"},
    "no order of sums (must differ)": {"MKL_CBWR": "COMPATIBLE"},
}
QUIET = ("rllm.trainer.test_freq=-1", "rllm.trainer.val_before_train=false", "rllm.trainer.logger=[]")
RECIPES: dict[str, tuple[str, ...]] = {
    "guess": ("rllm.env.name=guess",),
    "smollm2": (
        "rllm.env.name=sum",
        "model.name=model",
        "data.train_batch_size=4",
        "data.max_response_length=64",
        "rllm.rollout.n=4",
        "training.learning_rate=1e-5",
    ),
}
STEPS = {"guess": 200, "smollm2": 20}


def print_differences(model: str, steps: int) -> None:
    """Train in each setting of kernels, and print the line of `rllm record check` about log-probs."""
    with tempfile.TemporaryDirectory() as place:
        if model != "guess":
            smollm2.save_random(Path(place, "model"))
        for name, variables in KERNELS.items():
            words = (*RECIPES[model], *QUIET, f"rllm.trainer.total_batches={steps}", "rllm.record=tokens")
            command = [sys.executable, "-m", "rllm", "train", *words, "--overwrite"]
            environ = os.environ | variables
            subprocess.run(command, cwd=place, env=environ, check=True, capture_output=True)
            (run,) = Path(place, "runs/rllm-training").iterdir()
            check = [sys.executable, "-m", "rllm", "record", "check", str(run)]
            lines = subprocess.run(check, cwd=place, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
            print(f"{model}, {steps} steps, kernels {name}: {lines[-1]}", flush=True)


class StepCpu(Observer):
    """CPU seconds of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_batch_start(self, step: TrainStep) -> None:
        self._started = time.process_time()

    def on_batch_end(self, step: TrainStep) -> None:
        self.seconds.append(time.process_time() - self._started)


def step_seconds(model: str, steps: int) -> float:
    """Return the median CPU seconds of a step."""
    words = (*RECIPES[model], *QUIET, f"rllm.trainer.total_batches={steps}")
    registry, clock = Registry.load(), StepCpu()
    plan = make_plan(compose(registry, layers_from_overrides(words)), registry)
    directory = RunDirectory.open(plan.config.rllm.trainer, overwrite=True)
    TrainingLoop(plan, directory, train_tasks=load_tasks(plan, "train"), val_tasks=(), observers=[clock]).fit()
    directory.close()
    return statistics.median(clock.seconds[1:])


def print_cost(model: str, steps: int, repeats: int) -> None:
    """Print the CPU time of a step with exact attention, divided by the time with torch's attention."""
    exact = loading.use_exact_attention
    ratios = []
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        if model != "guess":
            smollm2.save_random(Path("model"))
        for number in range(repeats):
            found = {}
            for use in (exact, loading.use_torch_attention) if number % 2 else (loading.use_torch_attention, exact):
                loading.use_exact_attention = use
                found[use] = step_seconds(model, steps)
            ratios.append(found[exact] / found[loading.use_torch_attention])
            print(f"{model}: exact {found[exact]:.3f} s, ratio {ratios[-1]:.3f}", flush=True)
        os.chdir("/")
    print(f"{model}: CPU of a step, exact / torch's attention: {statistics.median(ratios):.3f} (median of {repeats})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measure", choices=("difference", "cost"))
    parser.add_argument("model", choices=tuple(RECIPES), nargs="?", default="guess")
    parser.add_argument("--steps", type=int, help="training steps (default: 200 and 20, for costs 12 and 3)")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of `cost` (default: 5)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.measure == "difference":
        print_differences(arguments.model, arguments.steps or STEPS[arguments.model])
    else:
        print_cost(arguments.model, arguments.steps or {"guess": 12, "smollm2": 3}[arguments.model], arguments.repeats)


if __name__ == "__main__":
    main()
