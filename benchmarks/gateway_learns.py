"""Compare an agent of openai-python with the built-in workflow on `guess`: validation curves of both.

python benchmarks/gateway_learns.py             # the demo's 240 steps, seed 0: a process per game, hours of CPU
python benchmarks/gateway_learns.py --steps 3   # 1,280 games

Rewards are equal at first. The last bits of a log-prob depend on the sequences that are sampled together. Agents make
calls when they are ready, and the built-in workflow makes the calls of a whole batch. When the difference has changed a
token, the rewards differ.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

AGENT = """
from openai import OpenAI
from rllm.environments.guess import Guess
from rllm.environments.options import GuessParams

client = OpenAI()


def solve(task):
    game = Guess(GuessParams(prompt="guess"))
    messages = [{"role": "user", "content": game.reset(task)}]
    total = 0.0
    while True:
        words = client.chat.completions.create(model="any", messages=messages).choices[0].message.content
        outcome = game.step(words)
        total += outcome.reward
        if outcome.done:
            return {"reward": total, "correct": outcome.correct, "metrics": outcome.metrics}
        messages += [{"role": "assistant", "content": words}, {"role": "user", "content": outcome.observation}]
"""
WAYS = {"built-in": (), "openai": ("--agent", "agent.py:solve", "rllm.sdk.store.path=traces.db")}
VALIDATED = 60
SOLVED, REWARD = "val/guess/pass@1", "reward/agent/mean"


def learn(way: str, seed: int, steps: int) -> tuple[dict[int, dict[str, float]], float]:
    """Return the metrics by the number of finished steps, and CPU seconds."""
    before = _cpu_seconds()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "agent.py").write_text(AGENT)
        words = ["train", "guess", "--seed", str(seed), *WAYS[way], f"rllm.trainer.total_batches={steps}"]
        program = [sys.executable, "-m", "rllm.cli.main", *words]
        subprocess.run(program, cwd=directory, stdout=subprocess.DEVNULL, check=True)
        lines = (directory / "runs/rllm-training/guess-1/metrics.jsonl").read_text().splitlines()
    found: dict[int, dict[str, float]] = {}
    for line in map(json.loads, lines):
        found.setdefault(int(line["step"]) + 1, {}).update(line)
    return found, _cpu_seconds() - before


def equal_steps(one: dict[int, dict[str, float]], other: dict[int, dict[str, float]]) -> int:
    """Return the number of first steps with the same mean reward in both."""
    made = 0
    while (made + 1) in one and one[made + 1][REWARD] == other[made + 1][REWARD]:
        made += 1
    return made


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=4 * VALIDATED)
    arguments = parser.parse_args()
    parts, steps = [], []
    for way in WAYS:
        made, seconds = learn(way, arguments.seed, arguments.steps)
        steps.append(made)
        curve = {number: each for number, each in made.items() if SOLVED in each}
        solved = ", ".join(f"{each[SOLVED]:.1%}" for each in curve.values())
        last = curve[max(curve)]
        parts.append(
            f"{way} {solved}, reward {last['val/guess/reward']:.3f}, {last['val/guess/guesses']:.3f} guesses, "
            f"{seconds:.0f} s of CPU"
        )
        print(parts[-1], file=sys.stderr, flush=True)
    print(f"solved after {', '.join(map(str, curve))} steps: {'; '.join(parts)}")
    print(f"rewards are equal for the first {equal_steps(*steps)} steps")


if __name__ == "__main__":
    main()
