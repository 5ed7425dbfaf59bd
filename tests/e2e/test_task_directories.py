"""Trainings on task directories, with programs in sandboxes that call the model through the gateway."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from documents import blocks
from expecting import expect_error
from programs import needs_program

from rllm.planning.preflight import find_validation_option
from rllm_core.data.types import Episode, TerminationReason
from rllm_core.errors import ConfigError, RllmError
from rllm_core.plugins.registry import Registry

from .conftest import plan_of

pytestmark = pytest.mark.usefixtures("without_validation")

NO_BWRAP = needs_program("bwrap")
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
SECRET = '[verifier.env]\nJUDGE_KEY = "s3cret"'


SOLVES = """
assert "three words" in os.environ["RLLM_INSTRUCTION"] and "three words" in json.load(sys.stdin)["instruction"]
assert os.listdir() == ["case.py"], os.listdir()
ask("hi")
Path("answer.txt").write_text("one two three")
"""
CHEATS = """
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
REPORTS = """
import urllib.error
ask("hi")
Path("answer.txt").write_text("one")
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/reward",
    b'{"reward": 1000}',
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
try:
    urllib.request.urlopen(request)
except urllib.error.HTTPError as error:
    assert error.code == 403 and b"tests" in error.read()
print('{"reward": 1000}')
"""
FILLS = """
ask("hi")
for size in (1 << 20, 1):
    try:
        with open(ROOT + "/app/big" + str(size), "wb", buffering=0) as file:
            while file.write(bytes(size)) == size:
                pass
    except OSError:
        pass
"""
WRITES_JSON = f"echo '{json.dumps({'reward': 0.5, 'style': 0.25})}' > $SANDBOX_ROOT/logs/verifier/reward.json"
FULL_DISK = "[agent]\ntimeout_sec = 8\n[environment]\nstorage_mb = 4"
FULL = "cp $SANDBOX_ROOT/tests/test.sh . && echo 1 > $SANDBOX_ROOT/logs/verifier/reward.txt; exit 0"
DONE = TerminationReason.ENV_DONE


@dataclass(frozen=True)
class Case:
    """A task whose agent runs some code, and the expected episode."""

    code: str
    reward: float
    ended: TerminationReason | None = DONE
    calls: int = 1
    tests: str = TESTS
    facts: str = ""
    metrics: dict[str, float] = field(default_factory=dict)


CASES = {
    "solves": Case(SOLVES, 3.0),
    "changes tests and reward": Case(CHEATS, 1.0),
    "reports rewards": Case(REPORTS, 1.0, metrics={"gateway/rejected_rewards": 2}),
    "waits until its time limit": Case(
        "ask('hi'); Path('answer.txt').write_text('one two'); time.sleep(1000)",
        2.0,
        TerminationReason.TIMEOUT,
        facts="[agent]\ntimeout_sec = 8",
    ),
    "fails after its work": Case(f"{WRITES}; sys.exit(3)", 3.0, None),
    "calls too often": Case(f"{WRITES}; ask('hi'); ask('hi')", 3.0, TerminationReason.MAX_TURNS_EXCEEDED, calls=2),
    "does not work": Case("ask('hi')", 0.0, metrics={"tests/failed": 1}),
    "has slow tests": Case(
        WRITES, 0.0, tests="sleep 1000", facts="[verifier]\ntimeout_sec = 1", metrics={"tests/timed_out": 1}
    ),
    "has a secret": Case(WRITES, 0.5, tests=WRITES_JSON, facts=SECRET, metrics={"tests/style": 0.25}),
}
IN_BWRAP = {
    # The program is that of a virtual environment.
    "imports": Case(f"import numpy; {WRITES}", 3.0),
    **{
        f"fills the disk and {name}": Case(
            FILLS + line, 0.0, None, tests=FULL, facts=FULL_DISK, metrics={"tests/failed": 1}
        )
        for name, line in {"ends": "", "fails": "sys.exit(3)", "waits": "time.sleep(1000)"}.items()
    },
}


@pytest.fixture
def run(train: Any, tmp_path: Path) -> Callable[..., Any]:
    """Run one step on the tasks of cases."""

    def run(cases: Mapping[str, Case], sandbox: str, **settings: Any) -> Any:
        (tmp_path / "agent.py").write_text(f"{PREAMBLE}exec(Path('case.py').read_text())")
        for name, case in cases.items():
            task = tmp_path / "tasks" / name.replace(" ", "-")
            (task / "tests").mkdir(parents=True)
            (task / "environment").mkdir()
            (task / "environment" / "case.py").write_text(case.code)
            (task / "environment" / "Dockerfile").write_text("FROM scratch\n")
            (task / "instruction.md").write_text("Write three words to answer.txt.")
            (task / "tests" / "test.sh").write_text(case.tests)
            (task / "task.toml").write_text(case.facts)
        keys = {
            "rllm.env.env_args.directory": str(tmp_path / "tasks"),
            "rllm.workflow.workflow_args.command": ["python3", "agent.py"],
            "rllm.workflow.n_parallel_tasks": 3,
            "rllm.sandbox": sandbox,
            "rllm.sdk.store.path": str(tmp_path / "traces.db"),
            "rllm.agent.max_steps": 2,
            "data.max_response_length": 4,
            "data.train_batch_size": len(cases),
            "rllm.rollout.n": 1,
        }
        return train("tasks", {**keys, **settings})

    return run


def check_episodes(cases: Mapping[str, Case], episodes: Sequence[Episode]) -> None:
    found = {episode.task_id: episode for episode in episodes}
    assert len(found) == len(cases)
    for name, case in cases.items():
        episode = found[name.replace(" ", "-")]
        assert [(each.reward, len(each.steps)) for each in episode.trajectories] == [(case.reward, case.calls)], name
        assert case.ended in (None, episode.termination_reason), name
        assert episode.metrics["gateway/trained_tokens"] > 0, name
        assert {key: episode.metrics[key] for key in case.metrics} == case.metrics, name


@pytest.mark.smoke
def test_rewards_are_those_of_the_tests(run: Any, tmp_path: Path) -> None:
    episodes = run(CASES, "local").episodes
    check_episodes(CASES, episodes)
    assert next(each.is_correct for each in episodes if each.task_id == "solves")
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("traces.db*"))
    assert b"three words" in stored and b"s3cret" not in stored


@pytest.mark.long
@NO_BWRAP
def test_rewards_in_bwrap_are_those_of_the_tests(run: Any) -> None:
    program = {"rllm.workflow.workflow_args.command": [sys.executable, "agent.py"]}
    check_episodes(CASES | IN_BWRAP, run(CASES | IN_BWRAP, "bwrap", **program).episodes)


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "values"),
    [
        (Case("sys.exit('not here')", 0.0), ["not here"]),
        (Case("ask()", 0.0), ["HTTP Error 400"]),
        (Case(WRITES, 0.0, tests="echo forgot it"), ["no reward", "forgot it"]),
    ],
    ids=["fails without a call", "sends bad requests", "tests without a reward"],
)
def test_rollout_without_a_reward_is_an_error(run: Any, case: Case, values: list[str]) -> None:
    with expect_error(RllmError, "rollout-failed", *values):
        run({"count": case}, "local")


@pytest.mark.long
@NO_BWRAP
def test_task_of_the_guide_is_solved(train: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (instruction,), (tests,), (facts,) = (blocks(PAGE, language) for language in ("", "bash", "toml"))
    task = tmp_path / "tasks" / "count"
    files = {
        "instruction.md": instruction,
        "tests/test.sh": tests,
        "task.toml": facts,
        "environment/names.txt": "a\nb\n",
        "tests/names.txt": "a\nb\n",
    }
    for name, text in files.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    solve = 'python3 agent.py && grep -q answer.txt <<< "$RLLM_INSTRUCTION" && wc -l < names.txt > answer.txt'
    (tmp_path / "agent.py").write_text(f"{PREAMBLE}ask(os.environ['RLLM_INSTRUCTION'])")
    keys = {
        "rllm.env.env_args.directory": str(task),
        "rllm.workflow.workflow_args.command": ["bash", "-c", solve.replace("agent.py", str(tmp_path / "agent.py"))],
        "rllm.sandbox": {"name": "bwrap", "readable": [str(tmp_path)]},
        "rllm.sdk.store.path": str(tmp_path / "traces.db"),
        "data.max_response_length": 4,
        "data.train_batch_size": 1,
        "rllm.rollout.n": 1,
    }
    (episode,) = train("tasks", keys).episodes
    assert [each.reward for each in episode.trajectories] == [1.0]
    assert f"shows {tmp_path}, which contains {task}" in capsys.readouterr().err


def test_function_in_a_sandbox_is_an_error(run: Any, tmp_path: Path) -> None:
    function = {"rllm.workflow.workflow_args.command": None, "rllm.workflow.workflow_args.agent": "agent.py:ask"}
    with expect_error(ConfigError, "function-in-sandbox", "agent.py:ask"):
        run(NO_WORK, "local", **function)


NO_WORK = {"count": Case("", 0.0)}
AGENT = {"rllm.workflow.name": "agent", "rllm.workflow.workflow_args.agent": "mini-swe-agent"}


def test_agent_that_is_not_installed_is_an_error(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with expect_error(ConfigError, "program-not-found", "uv tool install"):
        train("sum", {**AGENT, "rllm.sandbox": "local"})


def test_named_agent_without_sandbox_is_an_error(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
    (episode,) = run(NO_WORK, "local", **AGENT, **arguments, **command).episodes
    assert [each.reward for each in episode.trajectories] == [3.0]


def test_arguments_without_named_agent_are_an_error(run: Any) -> None:
    with expect_error(ConfigError, "arguments-without-program", "mini-swe-agent"):
        run(NO_WORK, "local", **{"rllm.workflow.workflow_args.arguments": ["--config", "my.yaml"]})


@pytest.mark.parametrize(("agent", "hint"), [("claude-cod", "claude-code"), ("solve", "FILE.py:FUNCTION")])
def test_an_unknown_agent_is_an_error(run: Any, agent: str, hint: str) -> None:
    with expect_error(ConfigError, "unknown-agent", hint):
        workflow = {"rllm.workflow.workflow_args.agent": agent, "rllm.workflow.workflow_args.command": None}
        run(NO_WORK, "local", **workflow)


def test_tasks_need_a_sandbox(train: Any, tmp_path: Path) -> None:
    with expect_error(ConfigError, "missing-key", "rllm.sandbox"):
        train("tasks", {**AGENT, "rllm.env.env_args.directory": str(tmp_path)})


@pytest.mark.parametrize(("file", "code"), [("instruction.md", "bad-task-directory"), ("other.md", "no-tasks")])
def test_directory_without_a_whole_task_is_an_error(train: Any, tmp_path: Path, file: str, code: str) -> None:
    (tmp_path / file).write_text("Any.")
    command = {"rllm.workflow.workflow_args.command": ["python3"], "rllm.sandbox": "local"}
    with expect_error(ConfigError, code, tmp_path):
        train("tasks", {**command, "rllm.env.env_args.directory": str(tmp_path)})


def test_hint_for_validation_tasks_names_the_tasks(tmp_path: Path) -> None:
    registry = Registry.load()
    workflow = {"name": "agent", "workflow_args": {"command": ["ls"]}}
    settings = {"rllm.backend": "local", "rllm.sandbox": "local", "rllm.workflow": workflow}
    settings |= {"rllm.env.name": "tasks", "rllm.env.env_args.directory": str(tmp_path)}

    (option,) = shlex.split(find_validation_option(plan_of(settings, registry)) or "")

    assert option == f"rllm.env.env_args.val_directory={tmp_path}"
    plan = plan_of(settings | dict([option.split("=")]), registry)
    assert plan.environment and plan.environment.params.val_directory == str(tmp_path)
