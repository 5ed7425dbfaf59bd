"""Cost and result of `make demo` after installation: seconds, resident memory and share of solved games, per seed.

python benchmarks/demo.py             # seeds 0, 1 and 2, one line of metrics
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def train(seed: int, directory: Path) -> tuple[float, float, dict[str, float]]:
    """Train with one seed, and return (seconds, peak resident GiB, last validation)."""
    command = [sys.executable, "-m", "rllm.cli.main", "train", "guess", "--seed", str(seed)]
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if status:
        raise SystemExit(f"seed {seed} failed with status {status}")
    metrics = directory / "runs" / "rllm-training" / "guess-1" / "metrics.jsonl"
    return seconds, usage.ru_maxrss / (1 << 20), json.loads(metrics.read_text().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds to train with (default: 0 1 2)")
    arguments = parser.parse_args()
    parts = []
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as directory:
            seconds, memory, metrics = train(seed, Path(directory))
        solved, guesses = metrics["val/guess/pass@1"], metrics["val/guess/guesses"]
        parts.append(f"seed {seed} {seconds:.0f} s {memory:.2f} GiB solved {solved:.1%} guesses {guesses:.3f}")
    print(f"demo: {'; '.join(parts)} (targets: 120 s, 1.5 GB, 95%, best possible 3.375)")


if __name__ == "__main__":
    main()
