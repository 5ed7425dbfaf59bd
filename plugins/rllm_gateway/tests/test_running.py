"""Agents run in their own processes: their input, their results and their exit."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError, PluginError
from rllm_gateway.link import OpenedSession
from rllm_gateway.running.runners import LONGEST, CommandRunner, FunctionRunner, Outcome, environment_of
from rllm_gateway.running.target import Target, check_target, sources_of_command, sources_of_function

AGENT = """
import asyncio, json, os, signal, subprocess, sys
KEY_AT_IMPORT = os.environ.get("OPENAI_API_KEY")

def solve(task):
    return {"reward": 1.5, "task": task, "key": KEY_AT_IMPORT, "pid": os.getpid()}

async def waits(task):
    await asyncio.sleep(0)
    return task["n"] / 2

def with_session(task, session):
    return session.with_role("judge").openai_url

def numpy_number(task):
    import numpy
    return numpy.float32(0.5)

def draws(task):
    from numpy import random
    return float(random.random())

def fails(task):
    print("looking for it")
    raise KeyError("no answer")

def fails_in_a_library(task):
    return json.loads("{")

def returns_an_object(task):
    return object()

def has_no_space_for_its_result(task):
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (3, 3))
    return "long"

def leaves(task):
    sys.exit(3)

def dies(task):
    os.kill(os.getpid(), signal.SIGKILL)

def reads(task):
    return sys.stdin.read()

def hangs(task):
    child = subprocess.Popen(["sleep", "1000"])
    open(task["file"], "w").write(f"{os.getpid()} {child.pid}")
    while True:
        pass

def leaves_a_child(task):
    child = subprocess.Popen(["sleep", "1000"])
    return str(child.pid)
"""


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    path = tmp_path / "my_agent.py"
    path.write_text(AGENT)
    return path


@pytest.fixture
def run(agent: Path, tmp_path: Path) -> Callable[..., Outcome]:
    def ran(function: str, environment: dict[str, str] | None = None, **task: Any) -> Outcome:
        async def go() -> Outcome:
            runner = FunctionRunner(Target(str(agent), function), tmp_path)
            try:
                return await runner.run(task, environment or {})
            finally:
                await runner.close()

        return asyncio.run(go())

    return ran


def is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def test_a_function_gets_its_task_and_its_environment_before_it_is_imported(run: Any) -> None:
    outcome = run("solve", {"OPENAI_API_KEY": "k1"}, question="1+1?")
    assert outcome.code == 0
    assert outcome.returned["task"] == {"question": "1+1?"}
    assert outcome.returned["key"] == "k1"
    assert outcome.returned["pid"] != os.getpid()


@pytest.mark.parametrize(("function", "returned"), [("waits", 2.0), ("numpy_number", 0.5), ("reads", "")])
def test_what_a_function_returns_arrives(run: Any, function: str, returned: Any) -> None:
    assert run(function, n=4).returned == returned


def test_forked_agents_draw_different_numbers(agent: Path, tmp_path: Path) -> None:
    async def go() -> list[Outcome]:
        runner = FunctionRunner(Target(str(agent), "draws"), tmp_path)
        try:
            return await asyncio.gather(*(runner.run({}, {}) for _ in range(3)))
        finally:
            await runner.close()

    assert len({outcome.returned for outcome in asyncio.run(go())}) == 3


def test_packages_that_print_at_their_import_start_agents(agent: Path, tmp_path: Path, run: Any) -> None:
    agent.write_text(f"import this\n{AGENT}")
    assert run("waits", n=4).returned == 2.0


def test_a_function_that_takes_a_session_gets_it(run: Any) -> None:
    environment = {"RLLM_SESSION_URL": "http://127.0.0.1:4000/s/x", "OPENAI_API_KEY": "k"}
    assert run("with_session", environment).returned == "http://127.0.0.1:4000/s/x/judge/v1"


@pytest.mark.parametrize(
    ("function", "code", "words"),
    [
        ("fails", 1, "KeyError: 'no answer'"),
        ("fails", 1, "looking for it"),
        ("returns_an_object", 1, "`reward`"),
        ("leaves", 1, "exited with 3"),
        ("dies", -9, "signal 9"),
        ("nowhere", 1, "has no function 'nowhere'"),
    ],
)
def test_an_agent_that_fails_is_told_by_its_last_lines(run: Any, function: str, code: int, words: str) -> None:
    outcome = run(function)
    assert outcome.code == code
    assert words in "\n".join([outcome.failure, *outcome.last_lines])


@pytest.mark.parametrize("function", ["fails", "fails_in_a_library"])
def test_traceback_of_agent_has_its_line_last_and_no_other_files(run: Any, agent: Path, function: str) -> None:
    files = [line for line in run(function).last_lines if line.startswith("  File ")]
    assert len(files) == 1
    assert str(agent) in files[0]
    assert function in files[0]


def test_a_file_that_fails_on_import_fails_the_rollout(run: Any, agent: Path) -> None:
    agent.write_text("import nothing_like_it\ndef solve(task): pass\n")
    assert "'nothing_like_it'" in run("solve").failure


def test_rollouts_run_side_by_side_and_share_nothing(agent: Path, tmp_path: Path) -> None:
    async def go() -> list[Outcome]:
        runner = FunctionRunner(Target(str(agent), "solve"), tmp_path)
        try:
            return await asyncio.gather(*(runner.run({"n": n}, {"OPENAI_API_KEY": f"k{n}"}) for n in range(20)))
        finally:
            await runner.close()

    outcomes = asyncio.run(go())
    assert [outcome.returned["key"] for outcome in outcomes] == [f"k{n}" for n in range(20)]
    assert len({outcome.returned["pid"] for outcome in outcomes}) == 20
    assert not list(tmp_path.glob("*.json"))


def test_partly_written_result_is_no_result(run: Any, tmp_path: Path) -> None:
    outcome = run("has_no_space_for_its_result")
    assert outcome.code and outcome.returned is None
    assert list(tmp_path.glob("*.part")) == []


def test_cancellation_during_a_failed_start_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def cancel() -> None:
        begun = asyncio.Event()

        async def fail(*command: Any, **options: Any) -> None:
            begun.set()
            await asyncio.sleep(0.01)
            raise OSError("no process")

        monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
        running = asyncio.create_task(CommandRunner(["echo"], tmp_path).run({}, {}))
        await begun.wait()
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


@pytest.mark.parametrize("ends", ["leaves", "dies", "fails"])
def test_a_rollout_that_ends_badly_ends_no_other(agent: Path, tmp_path: Path, ends: str) -> None:
    source = agent.read_text()
    agent.write_text(source + f"\ndef some(task):\n    return {ends}(task) if task['n'] % 2 else solve(task)\n")

    async def go() -> list[Outcome]:
        runner = FunctionRunner(Target(str(agent), "some"), tmp_path)
        try:
            return await asyncio.gather(*(runner.run({"n": n}, {}) for n in range(6)))
        finally:
            await runner.close()

    assert [outcome.code == 0 for outcome in asyncio.run(go())] == [True, False] * 3


def test_what_every_agent_needs_is_imported_before_it_starts(run: Any, agent: Path) -> None:
    agent.write_text("import sys\nTHERE = 'rllm_gateway.client' in sys.modules\ndef solve(task): return float(THERE)\n")
    assert run("solve").returned == 1.0


@pytest.fixture
def hanging(agent: Path, tmp_path: Path) -> Iterator[Callable[[Callable[..., Any]], list[int]]]:
    """Starts an agent that hangs, does something to its task, and gives the ids of its two processes."""
    file = tmp_path / "pids"

    def started(end: Callable[[FunctionRunner, asyncio.Task[Any]], Any]) -> list[int]:
        async def go() -> None:
            runner = FunctionRunner(Target(str(agent), "hangs"), tmp_path)
            rollout = asyncio.create_task(runner.run({"file": str(file)}, {}))
            while not (file.exists() and file.read_text()):
                await asyncio.sleep(0.01)
            await end(runner, rollout)
            await asyncio.wait({rollout})
            await runner.close()

        asyncio.run(go())
        return [*map(int, file.read_text().split())]

    yield started


def test_a_cancelled_rollout_kills_the_agent_and_what_it_started(hanging: Any) -> None:
    async def cancel(runner: FunctionRunner, rollout: asyncio.Task[Any]) -> None:
        rollout.cancel()

    for pid in hanging(cancel):
        wait_until(lambda pid=pid: not is_alive(pid))


def test_the_end_of_the_run_kills_the_agents(hanging: Any) -> None:
    async def close(runner: FunctionRunner, rollout: asyncio.Task[Any]) -> None:
        await runner.close()

    for pid in hanging(close):
        wait_until(lambda pid=pid: not is_alive(pid))


def test_what_an_agent_leaves_behind_ends_with_it(run: Any) -> None:
    pid = int(run("leaves_a_child").returned)
    wait_until(lambda: not is_alive(pid))


def test_a_spawned_agent_is_given_the_same(agent: Path, tmp_path: Path) -> None:
    from rllm_gateway.running.fork_server import ForkServer

    server = ForkServer(Target(str(agent), "solve"))
    server.forks = False
    order = {"environment": {"OPENAI_API_KEY": "k2"}, "task": {"n": 1}, "log": str(tmp_path / "log")}
    server.start({**order, "start": 7, "result": str(tmp_path / "result")})
    ended: list[tuple[int, int]] = []
    wait_until(lambda: bool(ended.extend(server.reap()) or ended))
    assert ended == [(7, 0)]
    assert '"key": "k2"' in (tmp_path / "result").read_text()


def test_a_module_is_an_agent_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "an_agent_module.py").write_text("def solve(task):\n    return task['n'] + 1\n")
    monkeypatch.chdir(tmp_path)
    target = check_target("an_agent_module:solve")
    assert str(tmp_path) not in sys.path, "looking for it changes nothing"

    async def go() -> Outcome:
        runner = FunctionRunner(target, tmp_path)
        try:
            return await runner.run({"n": 1}, {})
        finally:
            await runner.close()

    assert asyncio.run(go()).returned == 2


@pytest.mark.parametrize(
    ("agent_name", "code", "value"),
    [
        ("nowhere.py:solve", "file-not-found", "nowhere.py"),
        ("my_agent.py", "bad-function-name", "my_agent.py:solve"),
        ("my_agent.py:solv", "unknown-function", "'solve'"),
        ("broken.py:solve", "syntax-error", "broken.py, line 1"),
        ("no_such_module_at_all:solve", "module-not-found", "'no_such_module_at_all'"),
        ("solve", "bad-function-name", "FILE.py:FUNCTION"),
        (":solve", "bad-function-name", "FILE.py:FUNCTION"),
    ],
)
def test_an_agent_that_is_not_there_is_refused(
    agent: Path, monkeypatch: pytest.MonkeyPatch, agent_name: str, code: str, value: str
) -> None:
    (agent.parent / "broken.py").write_text("def (")
    monkeypatch.chdir(agent.parent)
    with expect_error(ConfigError, code, value):
        check_target(agent_name)


@pytest.mark.parametrize(
    "source", ["from somewhere import *", "from x import solve", "solve = object()", "if 1:\n  def solve(): 0"]
)
def test_a_function_may_be_bound_in_other_ways(agent: Path, source: str) -> None:
    agent.write_text(source)
    assert check_target(f"{agent}:solve").function == "solve"


def test_the_source_of_an_agent_is_its_file(agent: Path) -> None:
    assert sources_of_function(f"{agent}:solve") == {str(agent): AGENT}


def test_the_source_of_a_module_is_its_file_wherever_it_is() -> None:
    assert list(sources_of_function("rllm_gateway.client:reward")) == ["rllm_gateway.client"]


def test_the_sources_of_a_program_are_the_words_that_are_files_with_text(agent: Path, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert sources_of_command([sys.executable, str(agent), str(tmp_path / "binary"), "--fast"]) == {str(agent): AGENT}


def command(tmp_path: Path, program: str, environment: dict[str, str] | None = None, **task: Any) -> Outcome:
    runner = CommandRunner([sys.executable, "-c", textwrap.dedent(program)], tmp_path)
    return asyncio.run(runner.run(task, environment or {}))


def test_a_program_reads_its_task_and_says_its_reward(tmp_path: Path) -> None:
    program = """
        import json, os, sys
        task = json.load(sys.stdin)
        print("thinking")
        print(json.dumps({"reward": task["n"], "answer": os.environ["OPENAI_API_KEY"]}))
    """
    assert command(tmp_path, program, {"OPENAI_API_KEY": "k"}, n=2).returned == {"reward": 2, "answer": "k"}


@pytest.mark.parametrize("said", ["42", "[1]", '{"other": 1}', "words", ""])
def test_other_output_is_no_reward(tmp_path: Path, said: str) -> None:
    assert command(tmp_path, f"print({said!r})").returned is None


def test_a_program_that_fails_is_told_by_its_errors(tmp_path: Path) -> None:
    outcome = command(tmp_path, "print('fine'); raise SystemExit('out of luck')")
    assert "exit code 1" in outcome.failure
    assert outcome.failure.endswith("out of luck")


def test_a_program_that_is_not_there_is_no_fault_of_the_rollout(tmp_path: Path) -> None:
    with expect_error(PluginError, "agent-not-started", "no-such-program"):
        asyncio.run(CommandRunner(["no-such-program"], tmp_path).run({}, {}))


def test_a_cancelled_program_is_killed_with_its_children(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    program = f"""
        import os, subprocess
        child = subprocess.Popen(["sleep", "1000"])
        open({str(file)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
        child.wait()
    """

    async def go() -> None:
        rollout = asyncio.create_task(
            CommandRunner([sys.executable, "-c", textwrap.dedent(program)], tmp_path).run({}, {})
        )
        while not (file.exists() and file.read_text()):
            await asyncio.sleep(0.01)
        rollout.cancel()
        await asyncio.wait({rollout})

    asyncio.run(go())
    for pid in map(int, file.read_text().split()):
        wait_until(lambda pid=pid: not is_alive(pid))


def test_clients_find_the_session_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.setenv("GOOGLE_API_KEY", "the user's")
    session = OpenedSession(id="x", key="k", url="http://127.0.0.1:4000/s/x")
    variables = environment_of(session, {"n": 1})
    assert variables["OPENAI_BASE_URL"] == "http://127.0.0.1:4000/s/x/agent/v1"
    assert variables["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:4000/s/x/agent"
    assert variables["GOOGLE_GEMINI_BASE_URL"] == "http://127.0.0.1:4000/s/x/agent"
    keys = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")
    assert {variables[key] for key in keys} == {"k"}
    assert variables["RLLM_TASK"] == '{"n": 1}'
    assert variables["NO_PROXY"] == "example.org,127.0.0.1,localhost"


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("0", "0")])
def test_openai_agents_sends_no_traces_with_the_session_s_key_unless_told_to(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_AGENTS_DISABLE_TRACING", raising=False)
    if before is not None:
        monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", before)
    session = OpenedSession(id="x", key="k", url="http://127.0.0.1:4000/s/x")
    assert environment_of(session, {})["OPENAI_AGENTS_DISABLE_TRACING"] == after


def test_a_large_task_is_only_on_standard_input() -> None:
    session = OpenedSession(id="x", key="k", url="http://127.0.0.1:4000/s/x")
    assert "RLLM_TASK" not in environment_of(session, {"text": "a" * LONGEST})
