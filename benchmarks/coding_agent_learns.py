"""Train the model `tiny` on a terminal task with mini-swe-agent in a sandbox, and print the reward of every step.

    make test-clients    # installs mini-swe-agent into .venv-mini-swe-agent
    PATH="$PWD/.venv-mini-swe-agent/bin:$PATH" python benchmarks/coding_agent_learns.py [--steps 12] [--sandbox bwrap]

The task is to write ten lines to a file with at most 16 commands. Four commands of one letter, of the 81 tokens that
the model can answer, write a line. The tests count the lines. The agent is unmodified. Its config file takes the whole
answer as the command, because a model with random weights writes no code block.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMANDS = "abcd"
CALLS, LINES = 16, 10
AGENT = f"""
agent:
  system_template: ""
  instance_template: "{{{{task}}}}"
  step_limit: {CALLS}
environment:
  env: {{PATH: "bin:/usr/bin:/bin"}}
model:
  model_class: litellm_textbased
  action_regex: "^(.*)$"
  observation_template: "."
"""
TESTS = f"""
lines=$(cat answer.txt 2>/dev/null | wc -l)
echo "{{\\"reward\\": $(( lines < {LINES} ? lines : {LINES} ))e-1}}" > $SANDBOX_ROOT/logs/verifier/reward.json
"""
OVERRIDES = (
    "rllm.workflow.workflow_args.arguments=[--config, agent.yaml]",
    "rllm.sdk.store.path=calls.db",
    "data.train_batch_size=1",
    "data.max_response_length=1",
    "rllm.rollout.n=4",
    "rllm.algorithm.loss_agg_mode=seq-mean-token-sum",
    "rllm.algorithm.eps_clip_high=0.3",
    "training.learning_rate=3e-3",
    "training.num_epochs=4",
    "training.num_minibatches=4",
)


def write_task(directory: Path) -> None:
    """Write the task's directory, and the agent's config file."""
    task = directory / "tasks" / "lines"
    files = {"instruction.md": "go", "tests/test.sh": TESTS}
    files |= {f"environment/bin/{name}": "#!/bin/sh\necho line >> answer.txt\n" for name in COMMANDS}
    for name, text in files.items():
        path = task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (directory / "agent.yaml").write_text(AGENT)


def train(directory: Path, sandbox: str, steps: int, seed: int) -> list[float]:
    """Return the mean reward of every step. Its rollouts are sampled before the step's update."""
    words = ["train", "tasks:./tasks", "--agent", "mini-swe-agent", "--sandbox", sandbox, "--seed", str(seed)]
    words += [*OVERRIDES, f"rllm.trainer.total_batches={steps}"]
    subprocess.run([sys.executable, "-m", "rllm.cli.main", *words], cwd=directory, stdout=sys.stderr, check=True)
    lines = (directory / "runs/rllm-training/tasks-tasks-1/metrics.jsonl").read_text().splitlines()
    return [metrics["reward/agent/mean"] for metrics in map(json.loads, lines) if "reward/agent/mean" in metrics]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sandbox", default="local" if shutil.which("bwrap") is None else "bwrap")
    arguments = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        write_task(Path(name))
        rewards = train(Path(name), arguments.sandbox, arguments.steps, arguments.seed)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    curve = ", ".join(f"{each:.1%}" for each in rewards)
    print(
        f"mini-swe-agent in {arguments.sandbox}, seed {arguments.seed}: reward {curve}; "
        f"{time.perf_counter() - began:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of CPU"
    )


if __name__ == "__main__":
    main()
