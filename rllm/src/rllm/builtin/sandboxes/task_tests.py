"""Run the tests of a task's directory in its sandbox after the agent, and read their reward."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from rllm.builtin.sandboxes.process import lines_at_end
from rllm.builtin.sandboxes.untrusted import remove_outward_links, serve_untrusted_programs, write_program
from rllm.builtin.sandboxes.untrusted_client import VARIABLE
from rllm.builtin.tasks.task_directories import TaskFacts
from rllm_core.contracts.sandbox import CommandResult, Sandbox
from rllm_core.errors import RllmError, RolloutError
from rllm_core.notices import harmless, one_line, warn_once

LOGS = "/logs/verifier"
REWARD = "reward"
METRICS = "metrics"
LARGEST_REWARD_FILE = 65_536
READ = """
test -L "$0" && exit
for name; do
    file=$0/$name
    if test -f "$file" && test ! -L "$file"; then echo "$name"; exec head -c {bytes} "$file"; fi
done
""".format(bytes=LARGEST_REWARD_FILE + 1)  # noqa: UP032  (an f-string would need more braces)
"""Prints the name and the contents of the first of some files that is a plain file."""
START = 'PATH="$SANDBOX_ROOT/logs/bin:$PATH" exec bash "$SANDBOX_ROOT/tests/test.sh"'
EMPTY = ("BASH_ENV", "ENV", "LD_PRELOAD", "NODE_OPTIONS", "PYTEST_ADDOPTS", "PYTHONSTARTUP")
"""Variables that make programs load other code. In the sandbox `local`, yours would apply."""
SECONDS_TO_READ = 60.0
BYTES_TO_TRY = 65_536
SIGNALS = range(129, 193)
"""Exit codes of tests that a signal has killed. In the sandbox `local`, it is minus the signal's number."""


async def run_tests(sandbox: Sandbox, facts: TaskFacts, agent: CommandResult) -> dict[str, Any]:
    """Return the reward of a task's tests, and their metrics.

    It is 0 if they are killed, or fail for a reason that the agent can cause.

    Args:
        sandbox: the sandbox in which the agent has ended.
        facts: facts of the task.
        agent: the result of the agent's command.

    Raises:
        RolloutError: the tests succeed, and write no reward.
    """
    if not sandbox.isolates:
        warn_once(
            "this sandbox isolates nothing, so an agent can forge the reward of its tests. Add --sandbox bwrap, or "
            "train only agents that you trust"
        )
    try:
        await _prepare(sandbox, facts)
        async with serve_untrusted_programs(sandbox, facts.test_seconds) as server:
            tests = await sandbox.run(
                ["sh", "-c", START],
                seconds=facts.test_seconds,
                environment={**_environment(sandbox.root), **facts.test_environment, VARIABLE: server.address},
                port=server.port,
            )
    except RolloutError as error:
        return _no_reward(facts.path, error)
    if tests.exit_code is None:
        return {REWARD: 0.0, METRICS: {"tests/timed_out": 1.0}}
    if server.failure is not None:
        return _no_reward(facts.path, server.failure)
    try:
        # Killed tests have not decided, also if they have written a file.
        names = () if _is_killed(tests.exit_code) else facts.reward_files
        command = ["sh", "-c", READ, sandbox.root + LOGS, *names]
        return _parse(await sandbox.run(command, seconds=SECONDS_TO_READ), facts.path, tests)
    except RolloutError as error:
        if agent.exit_code == 0 and tests.exit_code == 0 and not await _is_full(sandbox):
            raise
        return _no_reward(facts.path, error)


async def _prepare(sandbox: Sandbox, facts: TaskFacts) -> None:
    """Delete everything in the sandbox that the agent could have prepared for the tests, and copy the tests."""
    with tempfile.TemporaryDirectory(prefix="rllm-tests-") as name:
        logs = Path(name)
        for empty in ("verifier", "tmp"):
            (logs / empty).mkdir()
        write_program(logs / "bin")
        # The agent may have written to these directories, or have left no space for them.
        await sandbox.copy_in(logs, "/logs")
    await sandbox.copy_in(Path(facts.path) / "tests", "/tests")
    await remove_outward_links(sandbox, sandbox.run)


def _environment(root: str) -> dict[str, str]:
    """Return environment variables with which programs of the tests load no code from the agent's directories."""
    # git of the tests would run programs that the agent's repository names.
    git = {"core.fsmonitor": "false", "core.hooksPath": "/dev/null"}
    settings = {f"GIT_CONFIG_KEY_{place}": key for place, key in enumerate(git)}
    settings |= {f"GIT_CONFIG_VALUE_{place}": value for place, value in enumerate(git.values())}
    return {
        **dict.fromkeys(EMPTY, ""),
        **settings,
        "GIT_CONFIG_COUNT": str(len(git)),
        "HOME": f"{root}/tests",
        "PYTHONNOUSERSITE": "1",
        # Python imports modules neither from the current directory nor from a script's. Tests import their own.
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": f"{root}/tests",
        "TMPDIR": f"{root}/logs/tmp",
    }


def _is_killed(exit_code: int) -> bool:
    return exit_code < 0 or exit_code in SIGNALS


def _no_reward(task: str, error: RllmError) -> dict[str, Any]:
    said = harmless(one_line(f"{error.message} {error.hint}"))
    warn_once(f"the tests of task {Path(task).name} failed, so the reward is 0: {said}")
    return {REWARD: 0.0, METRICS: {"tests/failed": 1.0}}


async def _is_full(sandbox: Sandbox) -> bool:
    """Return True if tests cannot write files, because the agent has left no space."""
    write = " && ".join(f"head -c {BYTES_TO_TRY} /dev/zero > '{sandbox.root}{at}/space'" for at in (LOGS, "/app"))
    command = ["sh", "-c", write]
    return (await sandbox.run(command, seconds=SECONDS_TO_READ)).exit_code != 0


def _parse(read: CommandResult, task: str, tests: CommandResult) -> dict[str, Any]:
    """Return the reward that tests have written: a number, or a JSON object of numbers with a key ``reward``."""
    name, _, content = read.stdout.partition(b"\n")
    lines = "\n".join(line for output in (tests.stdout, tests.stderr) for line in lines_at_end(output))
    if not name:
        ended = f"were killed with exit code {tests.exit_code}" if _is_killed(tests.exit_code or 0) else ""
        raise RolloutError(
            "no-reward-file",
            f"The tests of task {task} {ended or f'ended with exit code {tests.exit_code} and wrote no reward'}.",
            f"Write the reward to $SANDBOX_ROOT{LOGS}/reward.txt in tests/test.sh.",
            details=lines,
        )
    text = content.decode(errors="replace")
    try:
        if len(content) > LARGEST_REWARD_FILE:
            raise ValueError(f"more than {LARGEST_REWARD_FILE} bytes")
        values = json.loads(text)
        values = values if isinstance(values, dict) else {REWARD: values}
        numbers = {key: float(value) for key, value in values.items()}
        reward = numbers.pop(REWARD) if REWARD in numbers or len(numbers) != 1 else next(iter(numbers.values()))
        if not math.isfinite(reward):
            raise ValueError(f"{reward} is not finite")
    except (ValueError, OverflowError, TypeError, KeyError, RecursionError) as error:
        raise RolloutError(
            "bad-reward-file",
            f"The tests of task {task} wrote {text[:80]!r} to {name.decode()}.",
            'Write a number, or a JSON object of numbers such as {"reward": 1.0}.',
            details=lines,
        ) from error
    return {REWARD: reward, METRICS: {f"tests/{key}": value for key, value in numbers.items()}}
