"""Steps per second of `rllm train guess` over those of a bare loop: same game, model, batch, epochs and minibatches.

python benchmarks/floor.py            # 40 steps of each, alternately, one line of metrics
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import bare_loop
import torch

from rllm.config.compose import Composed, compose
from rllm.config.layers import layers_from_overrides
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.train_step import TrainStep
from rllm_core.plugins.registry import Registry


class StepClock(Observer):
    """Seconds from the start of the first step to the end of the last."""

    def on_batch_start(self, step: TrainStep) -> None:
        if step.global_step == 0:
            self.started = time.perf_counter()

    def on_batch_end(self, step: TrainStep) -> None:
        self.seconds = time.perf_counter() - self.started


def framework_seconds(composed: Composed, registry: Registry) -> float:
    """Train as a user does (metrics, trackers, checkpoints at the end) and time the steps."""
    plan = make_plan(composed, registry)
    clock = StepClock()
    directory = RunDirectory.open(composed.config.rllm.trainer, overwrite=True)
    tasks = load_tasks(plan, "train")
    TrainingLoop(plan, directory, train_tasks=tasks, val_tasks=(), observers=[clock]).fit()
    directory.close()
    return clock.seconds


def recipe_of(composed: Composed) -> bare_loop.Recipe:
    """The framework's own recipe, for the bare loop."""
    rllm, training = composed.config.rllm, composed.tree["training"]
    return bare_loop.Recipe(
        games_per_number=rllm.rollout.n,
        steps=rllm.trainer.total_batches,
        epochs=training["num_epochs"],
        minibatches=training["num_minibatches"],
        learning_rate=training["learning_rate"],
        betas=(training["beta1"], training["beta2"]),
        max_grad_norm=training["max_grad_norm"],
        eps_clip=rllm.algorithm.eps_clip,
        eps_clip_high=rllm.algorithm.eps_clip_high or rllm.algorithm.eps_clip,
        entropy_coeff=rllm.algorithm.entropy.coeff,
        entropy_decay_steps=rllm.algorithm.entropy.decay_steps,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="training steps of each (default: 40)")
    parser.add_argument("--repeats", type=int, default=3, help="repeats of each, alternately (default: 3)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    registry = Registry.load()
    bare, ours = [], []
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(arguments.repeats):
            words = [
                "rllm.env.name=guess",
                f"rllm.trainer.total_batches={arguments.steps}",
                f"rllm.trainer.output_dir={Path(directory)}",
                "rllm.trainer.val_before_train=false",
                "rllm.trainer.logger=[]",
            ]
            composed = compose(registry, layers_from_overrides(words))
            bare.append(arguments.steps / bare_loop.train(recipe_of(composed), seed=0)[0])
            ours.append(arguments.steps / framework_seconds(composed, registry))
    ratios = sorted(mine / floor for mine, floor in zip(ours, bare, strict=True))
    print(
        f"floor: {max(bare):.2f} steps/s bare, {max(ours):.2f} steps/s rllm train guess, "
        f"ratio {ratios[len(ratios) // 2]:.2f} (median of {len(ratios)} repeats: "
        f"{', '.join(f'{ratio:.2f}' for ratio in ratios)}; target 0.57)"
    )


if __name__ == "__main__":
    main()
