"""Coding agents repair a small repository in a sandbox, with a scripted model. All its tokens become rows."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gateway_world import Sampled, World
from programs import needs_program

from rllm.builtin.sandboxes.bwrap import BwrapParams, start_bwrap
from rllm.builtin.sandboxes.local import start_local
from rllm.builtin.tasks.task_directories import TaskDirectories, TaskDirectoriesParams
from rllm_gateway.running.episodes import make_trajectories
from rllm_gateway.running.harnesses import HARNESSES, HarnessRunner, check_harness
from rllm_gateway.running.runners import environment_of
from rllm_gateway.sampling.link_trainer import step_of

REPAIR = """python3 -c "text = open('mean.py').read(); open('mean.py', 'w').write(text.replace(' - 1', ''))" """
TURNS = [
    "ls -a",
    "cat mean.py",
    "cat check.py",
    "python3 check.py",
    "cp mean.py before.py",
    REPAIR,
    "diff before.py mean.py",
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
    # With less memory, opencode needs four times as long.
    "task.toml": "[environment]\nmemory_mb = 4096\n",
    "tests/test.sh": """
        test "$(untrusted python3 -c 'from mean import mean; print(mean([1, 3]))')" = 2.0 && reward=1 || reward=0
        echo $reward > $SANDBOX_ROOT/logs/verifier/reward.txt""",
}


Write = Callable[[str], Any]
"""Returns a tool's arguments that run a command."""
TOOLS: dict[str, tuple[str, Write]] = {
    "mini-swe-agent": ("bash", lambda command: {"command": command}),
    "claude-code": ("Bash", lambda command: {"command": command, "description": "Run it."}),
    "codex": ("exec_command", lambda command: {"cmd": command}),
    "qwen-code": ("run_shell_command", lambda command: {"command": command, "is_background": False}),
    "opencode": ("bash", lambda command: {"command": command, "description": "Run it."}),
}
"""Agent -> the tool that runs a command."""


def agent(name: str) -> Any:
    """Return a parameter of tests, which are skipped if the agent is not installed."""
    return pytest.param(name, marks=needs_program(HARNESSES[name].command[0]))


def call(tool: str, arguments: Any) -> str:
    return f"Next. <call>{json.dumps({'name': tool, 'arguments': arguments})}</call>"


def start() -> Any:
    """Return the function that starts sandboxes: `bwrap` if this machine has it."""
    return partial(start_local, None) if shutil.which("bwrap") is None else partial(start_bwrap, BwrapParams())


def count_rows(calls: Sequence[Sampled]) -> int:
    """Count the rows by the tokens only: a call adds a row unless it is the first to continue an earlier call."""
    ends = [np.concatenate((each.prompt_ids, each.completion.token_ids)) for each in calls]
    continued = set[int]()
    for at, each in enumerate(calls):
        shared = [i for i in range(at) if np.array_equal(each.prompt_ids[: len(ends[i])], ends[i])]
        continued |= {max(shared, key=lambda i: len(ends[i]))} if shared else set()
    return len(calls) - len(continued)


def repair(world: World, directory: Path, agent: str, response: Callable[[str], str], *arguments: str) -> Any:
    """Run the agent on the repository. Check that it was repaired, that all tokens are used, and the number of rows.

    Return the trained trajectories.
    """
    for name, text in FILES.items():
        (directory / "task" / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / "task" / name).write_text(text)
    (task,) = TaskDirectories.tasks("train", TaskDirectoriesParams(directory=str(directory / "task")))
    world.policy.response = response
    world.policy.max_context = LONGEST_PROMPT
    session = world.open(max_tokens=1000)
    runner = HarnessRunner(check_harness(agent), arguments, start(), 600)
    outcome = asyncio.run(runner.run(task.data, environment_of(session, {})))
    trace = world.close(session)
    assert outcome.code == 0, outcome.last_lines
    assert outcome.result == {"reward": 1.0, "metrics": {}}
    steps = {each.call: step_of(each.prompt_ids, each.completion) for each in world.policy.calls}
    trained = make_trajectories(trace, steps, "task:0")
    sampled = sum(len(each.completion.token_ids) for each in world.policy.calls)
    assert trained.metrics["gateway/trained_tokens"] == trained.metrics["gateway/sampled_tokens"] == sampled
    assert trained.metrics["gateway/rows"] == count_rows(world.policy.calls)
    return trained


@pytest.mark.parametrize("name", [agent(name) for name in TOOLS])
def test_repair_in_twelve_turns_is_one_row(statuses: list[int], world: World, tmp_path: Path, name: str) -> None:
    tool, write = TOOLS[name]

    def response(prompt: str) -> str:
        command = TURNS[len(world.policy.calls)]
        # mini-swe-agent ends with a command, and all others with a message without a call.
        return "Done." if name != "mini-swe-agent" and command == TURNS[-1] else call(tool, write(command))

    trained = repair(world, tmp_path, name, response)
    prompts = [each.prompt for each in world.policy.calls]
    assert prompts[0].count(FILES["instruction.md"]) == 1
    assert "no network" in prompts[-1]
    assert (trained.metrics["gateway/calls"], trained.metrics["gateway/rows"]) == (len(TURNS), 1)
    assert statuses == [200] * len(TURNS)


@pytest.mark.parametrize("name", [agent("claude-code"), agent("opencode")])
def test_sub_agent_calls_are_their_own_row(statuses: list[int], world: World, tmp_path: Path, name: str) -> None:
    tool, write = TOOLS[name]
    look, fix = call(tool, write("cat check.py")), call(tool, write(REPAIR))
    task = "Say what check.py asserts."
    sub_agent, kind = ("Agent", "general-purpose") if name == "claude-code" else ("task", "general")
    start_agent = call(sub_agent, {"description": "Look", "prompt": task, "subagent_type": kind})

    def response(prompt: str) -> str:
        if start_agent not in prompt and task in prompt:
            return "It asserts a mean." if look in prompt else look
        if start_agent not in prompt:
            return start_agent
        return "Done." if fix in prompt else fix

    trained = repair(world, tmp_path, name, response)
    assert trained.metrics["gateway/rows"] == 2
    assert set(statuses) == {200}
    assert len(statuses) == trained.metrics["gateway/calls"]


@pytest.mark.parametrize("name", [agent("claude-code")])
def test_calls_after_a_compaction_are_their_own_row(
    statuses: list[int], world: World, tmp_path: Path, name: str
) -> None:
    tool, write = TOOLS[name]
    settings = {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "120000", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "4000"}
    (tmp_path / "settings.json").write_text(json.dumps({"env": settings}))

    def response(prompt: str) -> str:
        if "Do NOT call any tools" in prompt[-1000:]:
            return "<summary>mean.py is repaired.</summary>"
        if "mean.py is repaired." in prompt:
            return "Done."
        number = len(world.policy.calls)
        return call(tool, write(f"head -c 20000 /dev/zero | tr '\\0' {number}" if number else REPAIR))

    trained = repair(world, tmp_path, name, response, "--settings", str(tmp_path / "settings.json"))
    assert trained.metrics["gateway/rows"] > 1
    assert set(statuses) == {200}
    assert len(statuses) == trained.metrics["gateway/calls"]
