"""Trainings on task directories, with programs in sandboxes that call the model through the gateway."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from documents import blocks
from expecting import expect_error

from rllm.cli.summary import training_tasks_option
from rllm_core.data.types import TerminationReason
from rllm_core.errors import ConfigError, RllmError
from rllm_core.plugins.registry import Registry

from .conftest import plan_of

pytestmark = pytest.mark.usefixtures("without_validation")

NO_BWRAP = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
SANDBOXES = ["local", pytest.param("bwrap", marks=NO_BWRAP)]
PAGE = "docs/how-to/coding-agents.md"
PREAMBLE = """
import json, os, sys, time, urllib.request
from pathlib import Path

ROOT = os.environ["SANDBOX_ROOT"]

def ask(*messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "m", "messages": [{"role": "user", "content": each} for each in messages]}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

"""
TESTS = """
python3 -c 'import sys; print(len(open("answer.txt").read().split()))' > $SANDBOX_ROOT/logs/verifier/reward.txt
"""
WRITES = "ask('hi'); Path('answer.txt').write_text('one two three')"


@pytest.fixture
def run(train: Any, tmp_path: Path) -> Callable[..., Any]:
    """Run one step on one task with the given agent code."""

    def run(code: str, sandbox: str, tests: str = TESTS, facts: str = "", **settings: Any) -> Any:
        (tmp_path / "agent.py").write_text(PREAMBLE + textwrap.dedent(code))
        task = tmp_path / "tasks" / "count"
        (task / "tests").mkdir(parents=True)
        (task / "environment").mkdir()
        (task / "environment" / "given.txt").write_text("given")
        (task / "environment" / "Dockerfile").write_text("FROM scratch\n")
        (task / "instruction.md").write_text("Write three words to answer.txt.")
        (task / "tests" / "test.sh").write_text(tests)
        (task / "task.toml").write_text(facts)
        keys = {
            "rllm.env.env_args.directory": str(tmp_path / "tasks"),
            "rllm.workflow.workflow_args.command": ["python3", "agent.py"],
            "rllm.sandbox": sandbox,
            "rllm.sdk.store.path": str(tmp_path / "traces.db"),
            "data.max_response_length": 4,
            "data.train_batch_size": 1,
            "rllm.rollout.n": 1,
        }
        return train("tasks", {**keys, **settings})

    return run


@pytest.mark.long
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_reward_is_that_of_the_tests(run: Any, sandbox: str) -> None:
    agent = """
        assert "three words" in os.environ["RLLM_INSTRUCTION"] and "three words" in json.load(sys.stdin)["instruction"]
        assert os.listdir() == ["given.txt"], os.listdir()
        ask("hi")
        Path("answer.txt").write_text("one two three")
    """
    (episode,) = run(agent, sandbox).episodes
    assert [(each.reward, len(each.steps)) for each in episode.trajectories] == [(3.0, 1)]
    assert episode.is_correct and episode.termination_reason is TerminationReason.ENV_DONE


@pytest.mark.long
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_agent_changes_neither_tests_nor_reward(run: Any, sandbox: str) -> None:
    agent = """
        ask("hi")
        for name in ("/tests/test.sh", "/tests/json.py", "/logs/verifier/reward.json"):
            path = Path(ROOT + name)
            path.parent.mkdir(exist_ok=True)
            path.write_text("1000")
        if os.fork() == 0:
            while True:
                for name in ("/tests/test.sh", "/logs/verifier/reward.json"):
                    try:
                        Path(ROOT + name).write_text("1000")
                    except OSError:
                        pass
        Path("answer.txt").write_text("one")
    """
    (episode,) = run(agent, sandbox).episodes
    assert [each.reward for each in episode.trajectories] == [1.0]


@pytest.mark.long
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_calls_of_an_agent_stopped_at_its_time_limit_are_trained(run: Any, sandbox: str) -> None:
    agent = "ask('hi'); Path('answer.txt').write_text('one two'); time.sleep(1000)"
    (episode,) = run(agent, sandbox, facts="[agent]\ntimeout_sec = 3").episodes
    assert [(each.reward, len(each.steps)) for each in episode.trajectories] == [(2.0, 1)]
    assert episode.termination_reason is TerminationReason.TIMEOUT
    assert episode.metrics["gateway/trained_tokens"] > 0


@pytest.mark.long
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_work_of_an_agent_that_fails_later_is_tested(run: Any, sandbox: str) -> None:
    (episode,) = run(f"{WRITES}; sys.exit(3)", sandbox).episodes
    assert [each.reward for each in episode.trajectories] == [3.0]


@pytest.mark.long
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_calls_up_to_the_limit_are_trained(run: Any, sandbox: str) -> None:
    agent = f"{WRITES}; ask('hi'); ask('hi')"
    (episode,) = run(agent, sandbox, **{"rllm.agent.max_steps": 2}).episodes
    assert episode.termination_reason is TerminationReason.MAX_TURNS_EXCEEDED
    assert [(each.reward, len(each.steps)) for each in episode.trajectories] == [(3.0, 2)]


@pytest.mark.long
def test_agent_that_fails_without_a_call_is_an_error(run: Any) -> None:
    with expect_error(RllmError, "rollout-failed", "not here"):
        run("sys.exit('not here')", "local")


@pytest.mark.long
def test_agent_that_fails_because_its_requests_are_rejected_is_an_error(run: Any) -> None:
    with expect_error(RllmError, "rollout-failed", "HTTP Error 400"):
        run("ask()", "local")


@pytest.mark.long
def test_tests_without_a_reward_are_an_error(run: Any) -> None:
    with expect_error(RllmError, "rollout-failed", "no reward", "forgot it"):
        run(WRITES, "local", tests="echo forgot it")


FILLS = """
ask("hi")
for size in (1 << 20, 1):
    try:
        with open(ROOT + "{place}/big" + str(size), "wb", buffering=0) as file:
            while file.write(bytes(size)) == size:
                pass
    except OSError:
        pass
"""
FULL = "echo 1 > $SANDBOX_ROOT/logs/verifier/reward.txt; exit 0"


@pytest.mark.long
@NO_BWRAP
@pytest.mark.parametrize("last_line", ["", "sys.exit(3)", "time.sleep(1000)"], ids=["ends", "fails", "waits"])
def test_agent_that_fills_the_disk_gets_no_reward(run: Any, last_line: str) -> None:
    facts = "[agent]\ntimeout_sec = 5\n[environment]\nstorage_mb = 4"
    (episode,) = run(FILLS.format(place="/app") + last_line, "bwrap", tests=FULL, facts=facts).episodes
    assert [(each.reward, len(each.steps)) for each in episode.trajectories] == [(0.0, 1)]
    assert episode.metrics["tests/failed"] == 1


@pytest.mark.long
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_work_with_which_the_tests_fail_gets_no_reward(run: Any, sandbox: str) -> None:
    (episode,) = run("ask('hi')", sandbox).episodes
    assert [each.reward for each in episode.trajectories] == [0.0]
    assert episode.metrics["tests/failed"] == 1


@pytest.mark.long
def test_tests_that_take_too_long_give_no_reward(run: Any) -> None:
    (episode,) = run(WRITES, "local", tests="sleep 1000", facts="[verifier]\ntimeout_sec = 1").episodes
    assert [each.reward for each in episode.trajectories] == [0.0]
    assert episode.metrics["tests/timed_out"] == 1


@pytest.mark.long
def test_environment_of_the_tests_is_not_stored(run: Any, tmp_path: Path) -> None:
    run(WRITES, "local", facts='[verifier.env]\nJUDGE_KEY = "s3cret"')
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("traces.db*"))
    assert b"three words" in stored and b"s3cret" not in stored


@pytest.mark.long
def test_rewards_in_json_are_metrics_too(run: Any) -> None:
    written = json.dumps({"reward": 0.5, "style": 0.25})
    tests = f"echo '{written}' > $SANDBOX_ROOT/logs/verifier/reward.json"
    (episode,) = run(WRITES, "local", tests=tests).episodes
    assert [each.reward for each in episode.trajectories] == [0.5]
    assert episode.metrics["tests/style"] == 0.25


@pytest.mark.long
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_task_of_the_guide_is_solved(train: Any, tmp_path: Path, sandbox: str) -> None:
    (instruction,), (tests,), (facts,) = (blocks(PAGE, language) for language in ("", "bash", "toml"))
    task = tmp_path / "tasks" / "count"
    files = {
        "instruction.md": instruction,
        "tests/test.sh": tests,
        "task.toml": facts,
        "environment/names.txt": "a\nb\n",
    }
    for name, text in files.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    solve = 'python3 agent.py && grep -q answer.txt <<< "$RLLM_INSTRUCTION" && wc -l < names.txt > answer.txt'
    (tmp_path / "agent.py").write_text(f"{PREAMBLE}ask(os.environ['RLLM_INSTRUCTION'])")
    keys = {
        "rllm.env.env_args.directory": str(task),
        "rllm.workflow.workflow_args.command": ["bash", "-c", solve.replace("agent.py", str(tmp_path / "agent.py"))],
        "rllm.sandbox": {"name": sandbox, "readable": [str(tmp_path)]} if sandbox == "bwrap" else sandbox,
        "rllm.sdk.store.path": str(tmp_path / "traces.db"),
        "data.max_response_length": 4,
        "data.train_batch_size": 1,
        "rllm.rollout.n": 1,
    }
    (episode,) = train("tasks", keys).episodes
    assert [each.reward for each in episode.trajectories] == [1.0]


@pytest.mark.long
@NO_BWRAP
def test_program_of_a_virtual_environment_runs_in_bwrap(run: Any) -> None:
    command = {"rllm.workflow.workflow_args.command": [sys.executable, "agent.py"]}
    (episode,) = run(f"import numpy; {WRITES}", "bwrap", **command).episodes
    assert [each.reward for each in episode.trajectories] == [3.0]


def test_function_in_a_sandbox_is_an_error(run: Any, tmp_path: Path) -> None:
    function = {"rllm.workflow.workflow_args.command": None, "rllm.workflow.workflow_args.agent": "agent.py:ask"}
    with expect_error(ConfigError, "function-in-sandbox", "agent.py:ask"):
        run("", "local", **function)


AGENT = {"rllm.workflow.name": "agent", "rllm.workflow.workflow_args.agent": "mini-swe-agent"}


def test_agent_that_is_not_installed_is_an_error(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with expect_error(ConfigError, "program-not-found", "uv tool install"):
        train("sum", {**AGENT, "rllm.sandbox": "local"})


def test_agent_by_name_without_a_sandbox_is_an_error(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    with expect_error(ConfigError, "no-sandbox", "mini-swe-agent", "--sandbox bwrap"):
        train("sum", AGENT)


@pytest.mark.long
def test_arguments_of_an_agent_by_name_are_added(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"assert sys.argv[-2:] == ['--config', '{tmp_path / 'my.yaml'}'], sys.argv; {WRITES}"
    (tmp_path / "my.yaml").write_text("agent: {}")
    program = tmp_path / "mini-swe-agent"
    program.write_text(f"#!/usr/bin/env python3\n{PREAMBLE}{code}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    arguments = {"rllm.workflow.workflow_args.arguments": ["--config", "my.yaml"]}
    command = {"rllm.workflow.workflow_args.command": None}
    (episode,) = run("", "local", **AGENT, **arguments, **command).episodes
    assert [each.reward for each in episode.trajectories] == [3.0]


def test_arguments_without_an_agent_by_name_are_an_error(run: Any) -> None:
    with expect_error(ConfigError, "arguments-without-program", "mini-swe-agent"):
        run(WRITES, "local", **{"rllm.workflow.workflow_args.arguments": ["--config", "my.yaml"]})


@pytest.mark.parametrize(("agent", "hint"), [("claude-cod", "claude-code"), ("solve", "FILE.py:FUNCTION")])
def test_an_unknown_agent_is_an_error(run: Any, agent: str, hint: str) -> None:
    with expect_error(ConfigError, "unknown-agent", hint):
        run(
            WRITES, "local", **{"rllm.workflow.workflow_args.agent": agent, "rllm.workflow.workflow_args.command": None}
        )


def test_tasks_need_a_sandbox(train: Any, tmp_path: Path) -> None:
    with expect_error(ConfigError, "missing-key", "rllm.sandbox"):
        train("tasks", {**AGENT, "rllm.env.env_args.directory": str(tmp_path)})


@pytest.mark.parametrize(("file", "code"), [("instruction.md", "bad-task-directory"), ("other.md", "no-tasks")])
def test_directory_without_a_whole_task_is_an_error(train: Any, tmp_path: Path, file: str, code: str) -> None:
    (tmp_path / file).write_text("Any.")
    command = {"rllm.workflow.workflow_args.command": ["python3"], "rllm.sandbox": "local"}
    with expect_error(ConfigError, code, tmp_path):
        train("tasks", {**command, "rllm.env.env_args.directory": str(tmp_path)})


def test_command_at_end_of_training_names_its_tasks(tmp_path: Path) -> None:
    registry = Registry.load()
    workflow = {"name": "agent", "workflow_args": {"command": ["ls"]}}
    settings = {"rllm.backend": "local", "rllm.sandbox": "local", "rllm.workflow": workflow}
    settings |= {"rllm.env.name": "tasks", "rllm.env.env_args.directory": str(tmp_path)}

    (option,) = shlex.split(training_tasks_option(plan_of(settings, registry)))

    assert option == f"rllm.env.env_args.val_directory={tmp_path}"
    plan = plan_of(settings | dict([option.split("=")]), registry)
    assert plan.environment and plan.environment.params.val_directory == str(tmp_path)
