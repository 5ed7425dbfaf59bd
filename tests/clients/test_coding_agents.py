"""mini-swe-agent repairs a small repository in a sandbox, with a scripted model. All its tokens become one row."""

from __future__ import annotations

import asyncio
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gateway_world import World

from rllm.sandboxes.bwrap import start_bwrap
from rllm.sandboxes.options import BwrapParams
from rllm.tasks.options import TaskDirectoriesParams
from rllm.tasks.task_directories import TaskDirectories
from rllm_gateway.episodes import traced
from rllm_gateway.link_trainer import step_of
from rllm_gateway.running.harnesses import check_harness
from rllm_gateway.running.runners import Outcome, environment_of
from rllm_gateway.running.sandboxed import SandboxRunner

MISSING_QWEN = [name for name in ("bwrap", "qwen") if shutil.which(name) is None]
MISSING = [name for name in ("bwrap", "mini-swe-agent") if shutil.which(name) is None]
needs_mini = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
needs_qwen = pytest.mark.skipif(bool(MISSING_QWEN), reason=f"not installed: {', '.join(MISSING_QWEN)}")

TURNS = [
    "ls -a",
    "cat mean.py",
    "cat check.py",
    "python3 check.py",
    "cp mean.py /tmp/before.py",
    """python3 -c "text = open('mean.py').read(); open('mean.py', 'w').write(text.replace(' - 1', ''))" """,
    "diff /tmp/before.py mean.py",
    "python3 check.py",
    "echo 'Fixed.' > NOTES",
    "cat NOTES",
    "curl --max-time 5 http://192.0.2.1/ || echo no network",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
]
LONGEST_PROMPT = 1 << 20
"""Characters, which are the tokens of this model."""
FILES = {
    "instruction.md": "The mean of [1, 3] must be 2. Repair mean.py.",
    "environment/mean.py": "def mean(values):\n    return sum(values) / (len(values) - 1)\n",
    "environment/check.py": "from mean import mean\n\nassert mean([1, 3]) == 2\n",
    "tests/test.sh": "python3 check.py && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt",
}


def play(world: World, directory: Path, agent: str, tool: str) -> tuple[Outcome, Any]:
    """Run the agent on the repository. Return its outcome, and the training rows of its session."""
    for name, text in FILES.items():
        (directory / "task" / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / "task" / name).write_text(text)
    (task,) = TaskDirectories.tasks("train", TaskDirectoriesParams(directory=str(directory / "task")))

    def response(prompt: str) -> str:
        call = {"name": tool, "arguments": {"command": TURNS[len(world.policy.calls)], "is_background": False}}
        return (
            "Done."
            if agent == "qwen-code" and call["arguments"]["command"] == TURNS[-1]
            else f"Next. <call>{json.dumps(call)}</call>"
        )

    world.policy.response = response
    world.policy.max_context = LONGEST_PROMPT
    harness = check_harness(agent)
    session = world.open(max_tokens=1000)
    runner = SandboxRunner(harness.command, partial(start_bwrap, BwrapParams()), 600, harness.environment)
    outcome = asyncio.run(runner.run(task.data, environment_of(session, {})))
    trace = world.close(session)
    steps = {each.call: step_of(each.prompt_ids, each.completion) for each in world.policy.calls}
    return outcome, traced(trace, steps, "task:0")


@pytest.mark.parametrize(
    ("agent", "tool"),
    [
        pytest.param("mini-swe-agent", "bash", marks=needs_mini),
        pytest.param("qwen-code", "run_shell_command", marks=needs_qwen),
    ],
)
def test_repair_in_twelve_turns_is_one_row(world: World, tmp_path: Path, agent: str, tool: str) -> None:
    outcome, trained = play(world, tmp_path, agent, tool)
    assert outcome.code == 0, outcome.last_lines
    assert outcome.returned == {"reward": 1.0, "metrics": {}}
    assert "no network" in world.policy.calls[-1].prompt
    metrics = trained.metrics
    sampled = sum(len(each.completion.token_ids) for each in world.policy.calls)
    assert (metrics["gateway/calls"], metrics["gateway/rows"]) == (len(TURNS), 1)
    assert (metrics["gateway/sampled_tokens"], metrics["gateway/trained_tokens"]) == (sampled, sampled)
    assert not any(name.startswith("gateway/excluded_tokens/") for name in metrics)
