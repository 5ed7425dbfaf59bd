"""Training of `guess` on older tokens, per setting and seed: games solved, and the step that reaches 95 %.

python benchmarks/stale_learning.py                                  # synchronous and S of 1, 2 and 4, seeds 0, 1 and 2
python benchmarks/stale_learning.py --ahead 2 --seeds 0 -- training.beta2=0.999    # overrides for all runs

Validations every 20 steps give both values. They do not change the training.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

WATCHED = ("rllm.trainer.test_freq=20", "rllm.trainer.save_freq=-1", "rllm.record=off")
SOLVED = 0.95


class Learnt(NamedTuple):
    """Results of a run's validations."""

    solved: float
    """pass@1 after the last step."""
    found: float
    """pass@16: share of the numbers that at least one rollout finds."""
    first: int | None
    """Steps before the first validation that reaches 95 %."""


def words_of(ahead: int) -> tuple[str, ...]:
    """Return the settings of a run that generates this number of steps ahead."""
    if ahead == 0:
        return ()
    return "rllm.async_training.enable=true", f"rllm.async_training.staleness_threshold={ahead}"


def learn(seed: int, words: Sequence[str]) -> Learnt:
    """Train once, in a temporary directory."""
    command = [sys.executable, "-m", "rllm.cli.main", "train", "guess", "--seed", str(seed), *WATCHED, *words]
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL)
        lines = (Path(directory) / "runs/rllm-training/guess-1/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    validations = [metrics for metrics in map(json.loads, lines) if "val/guess/pass@1" in metrics]
    last = validations[-1]
    reached = [metrics["step"] + 1 for metrics in validations if metrics["val/guess/pass@1"] >= SOLVED]
    return Learnt(last["val/guess/pass@1"], last["val/guess/pass@16"], reached[0] if reached else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ahead", type=int, nargs="+", default=[0, 1, 2, 4], help="steps that are generated ahead")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds to train with")
    parser.add_argument("words", nargs="*", help="further overrides, after --")
    arguments = parser.parse_args()
    for ahead in arguments.ahead:
        for seed in arguments.seeds:
            learned = learn(seed, [*words_of(ahead), *arguments.words])
            first = "never" if learned.first is None else f"after {learned.first} steps"
            print(
                f"S={ahead} seed {seed}: solved {learned.solved:.3f}, numbers found {learned.found:.3f}, 95 % {first}",
                flush=True,
            )


if __name__ == "__main__":
    main()
