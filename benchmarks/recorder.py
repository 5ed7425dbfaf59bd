"""Cost of a run's record: CPU time in proportion to the steps of the demo, and bytes per token at one epoch.

The demo is the worst case: its model has 90,000 weights, and its trajectories have 13 tokens.

python benchmarks/recorder.py             # rllm.record=outcomes and tokens, 20 steps each
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rllm.api.trainer import UnifiedTrainer
from rllm_backend_kit.update_trace import UpdateTrace
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.train_step import TrainStep
from rllm_record.recorder import Recorder
from rllm_record.steps import StepFiles

KINDS = ("episodes", "outcomes", "vocabulary", "traces", "updates")
WARM_UP = 2
"""First steps that are not counted. They import pyarrow and compute the text of every token."""


class Watch(Observer):
    """CPU seconds by cause, from step `WARM_UP`."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.counts = False
        self._began = 0.0

    def on_batch_start(self, step: TrainStep) -> None:
        self.counts = step.global_step >= WARM_UP
        self._began = time.process_time()

    def on_epoch_end(self, epoch: int) -> None:
        self._end_step()

    def on_train_end(self, global_step: int) -> None:
        self._end_step()

    def on_batch_end(self, step: TrainStep) -> None:
        self._end_step()

    def _end_step(self) -> None:
        """Count the step. The recorder gets the step's end after this, and `timed` adds its time."""
        if self.counts:
            self.seconds["step"] += time.process_time() - self._began
        self._began = time.process_time()

    def timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method, with its thread's CPU time counted."""

        def call(*arguments: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return method(*arguments, **options)
            finally:
                if self.counts:
                    self.seconds[name] += time.thread_time() - began

        return call


def train(record: str, steps: int, training: dict[str, Any]) -> tuple[Counter[str], Path]:
    """Train the demo in its own directory. The process changes to this directory."""
    directory = Path(tempfile.mkdtemp())
    os.chdir(directory)
    watch = Watch()
    real = {(owner, name): getattr(owner, name) for owner, name in METHODS}
    for (owner, name), method in real.items():
        setattr(owner, name, watch.timed(METHODS[owner, name], method))
    quiet = {"total_batches": steps, "val_before_train": False, "test_freq": -1, "logger": []}
    try:
        trainer = UnifiedTrainer(
            config={
                "rllm": {"backend": "local", "env": {"name": "guess"}, "record": record, "trainer": quiet},
                "training": training,
            },
            observers=[watch],
        )
        trainer.fit()
        trainer.shutdown()
    finally:
        for (owner, name), method in real.items():
            setattr(owner, name, method)
    return watch.seconds, next(directory.rglob("record"))


METHODS: dict[tuple[type, str], str] = {
    (Recorder, "on_batch_end"): "recorder",
    (StepFiles, "write_tables"): "writing",
    (UpdateTrace, "add"): "trace",
    (UpdateTrace, "end_step"): "trace",
    (UpdateTrace, "result"): "trace",
}


def bytes_per_token(record: Path) -> dict[str, float]:
    """Return the bytes per token of the episodes, by directory of the record."""
    files = StepFiles(record)
    tokens = sum(
        len(trajectory.trajectory.tokens)
        for step in files.steps()
        for episode in files.episodes(step)
        for trajectory in episode.trajectories
    )
    sizes = {kind: sum(file.stat().st_size for file in (record / kind).glob("*.parquet")) for kind in KINDS}
    return {kind: size / tokens for kind, size in sizes.items()} | {"all": sum(sizes.values()) / tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="steps to train (default: 20)")
    arguments = parser.parse_args()
    for record, epochs in (("outcomes", 2), ("tokens", 2), ("tokens", 1)):
        seconds, directory = train(record, arguments.steps, {"num_epochs": epochs})
        counted = arguments.steps - WARM_UP
        shares = ", ".join(
            f"{name} {seconds[name] / counted * 1e3:.1f} ms" for name in ("recorder", "writing", "trace", "step")
        )
        cost = (seconds["recorder"] + seconds["writing"] + seconds["trace"]) / (seconds["step"] + seconds["recorder"])
        print(f"{record}, {epochs} epochs: {cost:.1%} of a step's CPU time ({shares})")
        if record == "tokens":
            sizes = ", ".join(f"{kind} {size:.1f}" for kind, size in bytes_per_token(directory).items())
            print(f"bytes per token: {sizes}")


if __name__ == "__main__":
    main()
