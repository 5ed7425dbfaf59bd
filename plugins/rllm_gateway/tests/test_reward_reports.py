"""Who may set the reward of a rollout: the key that a report needs, and the processes that have it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_world import World

from rllm.builtin.sandboxes.local import start_local
from rllm_gateway.client import REWARD_KEY
from rllm_gateway.running.harnesses import Harness, HarnessRunner
from rllm_gateway.running.runners import TASK, CommandRunner, FunctionRunner, Outcome, environment_of
from rllm_gateway.running.sandboxed import SandboxRunner
from rllm_gateway.running.target import Target
from rllm_gateway.sessions.link import OpenedSession

REPORT = """
import sys
from urllib.error import HTTPError
from rllm_gateway.client import reward
try:
    reward(1.0)
except HTTPError as error:
    sys.exit(error.code)
"""
"""A command that reports a reward with the keys in its environment. Its exit code is the HTTP status of an error."""
AGENT = f"""
import json, subprocess, sys
from rllm_gateway.client import reward

REPORT = {REPORT!r}

def reports(task):
    reward(0.5)

def runs_command(task):
    return {{"answer": str(subprocess.run([sys.executable, "-c", REPORT]).returncode)}}

if __name__ == "__main__":
    print(json.dumps(runs_command({{}})))
"""
OTHER_KEYS: dict[str, Callable[[OpenedSession, str], str]] = {
    "none": lambda own, other: "",
    "session's": lambda own, other: own.key,
    "other": lambda own, other: other,
}


def report(session: OpenedSession, reward_key: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {session.key}", "x-rllm-reward-key": reward_key}
    return httpx.post(f"{session.openai_url()}/reward", json={"reward": 1.0}, headers=headers)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"reward_source": "tests"}, "tests"),
        ({"reward_source": "rllm.reward"}, "--reward"),
        ({}, "environment"),
        ({"reward_source": "agent"}, "reports_reward=true"),
    ],
)
@pytest.mark.parametrize("key", OTHER_KEYS)
def test_report_without_its_key_is_refused(world: World, spec: dict[str, Any], named: str, key: str) -> None:
    session, other = world.open(**spec), world.open(reward_source="agent")
    answer = report(session, OTHER_KEYS[key](session, other.reward_key))
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")
    assert named in answer.json()["error"]["message"]
    trace = world.close(session)
    assert (dict(trace.rewards), trace.rejected_rewards) == ({}, 1)


def test_reward_key_replaces_no_session_key(world: World) -> None:
    session = world.open(reward_source="agent")
    headers = {"authorization": f"Bearer {session.reward_key}", "x-rllm-reward-key": session.reward_key}
    assert httpx.post(f"{session.openai_url()}/reward", json={"reward": 1.0}, headers=headers).status_code == 401


@pytest.mark.parametrize("source", ["tests", "rllm.reward", "environment"])
def test_only_sessions_of_reporting_agents_have_keys(world: World, source: str) -> None:
    assert not world.open(reward_source=source).reward_key


def run(world: World, session: OpenedSession, directory: Path, way: str, variables: dict[str, str]) -> Outcome:
    """Run an agent in a way: a function of `AGENT`, or `AGENT` as a program, alone or in a sandbox."""
    (directory / "agent.py").write_text(AGENT)
    environment = environment_of(session, {}) | variables
    program = [sys.executable, str(directory / "agent.py")]

    async def go() -> Outcome:
        runner: Any
        if way == "program":
            runner = CommandRunner(program, directory)
        elif way == "sandbox":
            runner = SandboxRunner(program, lambda setup: start_local(None, setup), 60.0)
        else:
            runner = FunctionRunner(Target(str(directory / "agent.py"), way), directory)
        try:
            outcome: Outcome = await runner.run({}, environment, session.reward_key)
            return outcome
        finally:
            await runner.close()

    return asyncio.run(go())


@pytest.mark.parametrize("way", ["runs_command", "program", "sandbox"])
@pytest.mark.parametrize("reports", [False, True])
@pytest.mark.long
def test_command_reports_only_with_the_option(world: World, tmp_path: Path, way: str, reports: bool) -> None:
    session = world.open(reward_source="agent")
    outcome = run(world, session, tmp_path, way, {REWARD_KEY: session.reward_key} if reports else {})
    assert outcome.result == {"answer": "0" if reports else str(403 % 256)}, outcome.last_lines
    assert dict(world.close(session).rewards) == ({"agent": 1.0} if reports else {})


def test_function_reports_its_reward(world: World, tmp_path: Path) -> None:
    session = world.open(reward_source="agent")
    assert run(world, session, tmp_path, "reports", {}).code == 0
    assert dict(world.close(session).rewards) == {"agent": 0.5}


@pytest.mark.parametrize(
    ("is_harness", "source", "returned", "rejected"),
    [(False, "program", {"reward": 50}, False), (True, "rllm.reward", None, True)],
)
def test_agent_with_a_name_prints_no_reward(is_harness: bool, source: str, returned: Any, rejected: bool) -> None:
    print_reward = ["sh", "-c", f"""echo "${{{TASK}-no task}}" >&2; echo '{{"reward": 50}}'"""]
    runner: SandboxRunner
    if is_harness:
        harness = Harness(install="", command=tuple(print_reward))
        runner = HarnessRunner(harness, (), lambda setup: start_local(None, setup), 60.0)
    else:
        runner = SandboxRunner(print_reward, lambda setup: start_local(None, setup), 60.0)
    outcome = asyncio.run(runner.run({}, environment_of(OpenedSession(id="x", key="k", url="http://127.0.0.1:9"), {})))
    assert runner.reward_source({}) == source
    assert (outcome.result, outcome.rejected_reward) == (returned, rejected)
    assert outcome.last_lines == ("no task" if is_harness else "{}",), "the task can contain the answer"


@pytest.mark.parametrize("way", ["program", "sandbox"])
def test_failed_program_reports_nothing(tmp_path: Path, way: str) -> None:
    command = ["sh", "-c", """echo '{"reward": 50}'; exit 1"""]
    runner: Any = CommandRunner(command, tmp_path)
    if way == "sandbox":
        runner = SandboxRunner(command, lambda setup: start_local(None, setup), 60.0)
    outcome = asyncio.run(runner.run({}, {"RLLM_SESSION_URL": "http://127.0.0.1:9"}))
    assert (outcome.code, outcome.result, outcome.rejected_reward) == (1, None, False)
