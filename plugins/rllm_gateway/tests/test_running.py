"""Agents run in their own processes or in sandboxes: their input, their results and their exit."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error
from live_processes import is_alive

from rllm.builtin.sandboxes.local import start_local
from rllm_core.contracts.sandbox import Sandbox, SandboxSetup
from rllm_core.errors import ConfigError, PluginError, RolloutError
from rllm_gateway.running.runners import (
    LONGEST,
    URL,
    CommandRunner,
    FunctionRunner,
    Outcome,
    environment_of,
    parse_result,
)
from rllm_gateway.running.sandboxed import SandboxRunner
from rllm_gateway.running.target import Target, check_target, sources_of_command, sources_of_function
from rllm_gateway.sessions.link import OpenedSession

AGENT = """
import asyncio, json, os, signal, subprocess, sys, this
AT_IMPORT = {"key": os.environ.get("OPENAI_API_KEY"), "is_client_imported": 'rllm_gateway.client' in sys.modules}

def solve(task):
    return {"task": task, "pid": os.getpid(), **AT_IMPORT}

async def waits(task):
    await asyncio.sleep(0)
    return task["n"] / 2

def with_session(task, session):
    return session.with_role("judge").openai_url

def keys(task, session):
    return [session.key, session.reward_key]

def numpy_number(task):
    import numpy
    return numpy.float32(0.5)

def draws(task):
    import numpy.random
    return float(numpy.random.random())

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

def leaves_a_child(task):
    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

def hangs(task):
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    open(task["file"], "w").write(f"{os.getpid()} {child.pid}")
    while True:
        pass

def chosen(task):
    return globals()[task["function"]](task)
"""
FAILURES = {
    "fails": (1, "looking for it\n", "KeyError: 'no answer'"),
    "fails_in_a_library": (1, "", "JSONDecodeError"),
    "returns_an_object": (1, "", "`reward`"),
    "leaves": (1, "", "exited with 3"),
    "dies": (-9, "", "signal 9"),
    "has_no_space_for_its_result": (1, "", "exit code 1"),
}
"""Function -> its exit code, text of its output, and text of its description."""
SUCCESSES = ("waits", "numpy_number", "reads", *["draws"] * 3, "leaves_a_child")
ROLLOUTS = ("solve", "fails", "solve", *SUCCESSES, *FAILURES, "solve")


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    path = tmp_path / "my_agent.py"
    path.write_text(AGENT)
    return path


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agents")


@pytest.fixture(scope="module")
def outcomes(directory: Path) -> dict[str, list[Outcome]]:
    """Run all `ROLLOUTS` at once, and return the outcomes of each function."""
    (directory / "my_agent.py").write_text(AGENT)

    async def run_all(runner: FunctionRunner) -> list[Outcome]:
        tasks = [{"function": name, "n": n} for n, name in enumerate(ROLLOUTS)]
        return await asyncio.gather(*(runner.run(task, {"OPENAI_API_KEY": f"k{task['n']}"}) for task in tasks))

    made = with_runner(Target(str(directory / "my_agent.py"), "chosen"), directory, run_all)
    return {name: [each for each, ran in zip(made, ROLLOUTS, strict=True) if ran == name] for name in ROLLOUTS}


def with_runner(target: Target, directory: Path, steps: Callable[[FunctionRunner], Any]) -> Any:
    """Return the result of `steps` with a runner."""

    async def go() -> Any:
        runner = FunctionRunner(target, directory)
        try:
            return await steps(runner)
        finally:
            await runner.close()

    return asyncio.run(go())


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def test_each_agent_has_its_task_environment_and_process(outcomes: dict[str, list[Outcome]]) -> None:
    solved = outcomes["solve"]
    numbers = [n for n, name in enumerate(ROLLOUTS) if name == "solve"]
    assert [each.code for each in solved] == [0] * len(numbers)
    assert [each.result["task"] for each in solved] == [{"function": "solve", "n": n} for n in numbers]
    assert [each.result["key"] for each in solved] == [f"k{n}" for n in numbers]
    assert all(each.result["is_client_imported"] for each in solved)
    assert len({os.getpid(), *(each.result["pid"] for each in solved)}) == 1 + len(numbers)


def test_returned_values_arrive(outcomes: dict[str, list[Outcome]]) -> None:
    assert [outcomes[name][0].result for name in ("waits", "numpy_number", "reads")] == [1.5, 0.5, ""]


def test_forked_agents_draw_different_numbers(outcomes: dict[str, list[Outcome]]) -> None:
    assert len({each.result for each in outcomes["draws"]}) == 3


@pytest.mark.parametrize("function", FAILURES)
def test_failed_agent_is_described_by_its_last_lines(outcomes: dict[str, list[Outcome]], function: str) -> None:
    code, printed, described = FAILURES[function]
    outcome = outcomes[function][-1]
    assert (outcome.code, outcome.result) == (code, None)
    assert printed in "".join(f"{line}\n" for line in outcome.last_lines)
    assert described in outcome.failure


@pytest.mark.parametrize("function", ["fails", "fails_in_a_library"])
def test_traceback_ends_with_the_agents_line(outcomes: dict[str, list[Outcome]], function: str) -> None:
    files = [line for line in outcomes[function][-1].last_lines if line.startswith("  File ")]
    assert all("my_agent.py" in line for line in files)
    assert [line.rpartition(" ")[2] for line in files] == ["chosen", function]


def test_ended_agents_leave_no_process_and_no_file(outcomes: dict[str, list[Outcome]], directory: Path) -> None:
    wait_until(lambda: not is_alive(int(outcomes["leaves_a_child"][0].result)))
    assert {file.name for file in directory.iterdir()} == {"my_agent.py", "agent_server.log"}


def test_a_function_that_takes_a_session_gets_it(agent: Path, tmp_path: Path) -> None:
    environment = {"RLLM_SESSION_URL": "http://127.0.0.1:4000/s/x", "OPENAI_API_KEY": "k"}
    outcome = with_runner(Target(str(agent), "with_session"), tmp_path, lambda runner: runner.run({}, environment))
    assert outcome.result == "http://127.0.0.1:4000/s/x/judge/v1"


@pytest.mark.parametrize(
    ("source", "function", "described"),
    [
        ("import nothing_like_it\ndef solve(task): pass", "solve", "'nothing_like_it'"),
        ("", "nowhere", "has no function 'nowhere'"),
    ],
)
def test_agent_that_cannot_be_called_fails_the_rollout(
    agent: Path, tmp_path: Path, source: str, function: str, described: str
) -> None:
    agent.write_text(source)
    outcome = with_runner(Target(str(agent), function), tmp_path, lambda runner: runner.run({}, {}))
    assert outcome.code == 1
    assert described in outcome.failure


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


def test_cancellation_and_run_end_kill_agent_trees(agent: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("cancelled", "closed")]

    async def steps(runner: FunctionRunner) -> list[asyncio.Task[Outcome]]:
        rollouts = [asyncio.create_task(runner.run({"file": str(file)}, {})) for file in files]
        while not all(file.exists() and file.read_text() for file in files):
            await asyncio.sleep(0.01)
        rollouts[0].cancel()
        await asyncio.to_thread(wait_until, lambda: not any(map(is_alive, pids_in(files[0]))))
        assert all(map(is_alive, pids_in(files[1])))
        await runner.close()
        await asyncio.wait(rollouts)
        return rollouts

    cancelled, closed = with_runner(Target(str(agent), "hangs"), tmp_path, steps)
    assert cancelled.cancelled()
    with expect_error(RolloutError, "process-died"):
        closed.result()
    wait_until(lambda: not any(map(is_alive, pids_in(files[1]))))


def pids_in(file: Path) -> list[int]:
    return [*map(int, file.read_text().split())]


def test_a_spawned_agent_is_given_the_same(agent: Path, tmp_path: Path) -> None:
    from rllm_gateway.running.fork_server import ForkServer

    server = ForkServer(Target(str(agent), "keys"))
    server.forks = False
    order = {"environment": {"OPENAI_API_KEY": "k2", URL: "u"}, "task": {}, "reward_key": "r", "start": 7}
    server.start({**order, "log": str(tmp_path / "log"), "result": str(tmp_path / "result")})
    ended: list[tuple[int, int]] = []
    wait_until(lambda: bool(ended.extend(server.reap()) or ended))
    assert ended == [(7, 0)]
    assert json.loads((tmp_path / "result").read_text()) == ["k2", "r"]


def test_a_module_is_an_agent_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "an_agent_module.py").write_text("def solve(task):\n    return task['n'] + 1\n")
    monkeypatch.chdir(tmp_path)
    target = check_target("an_agent_module:solve")
    assert str(tmp_path) not in sys.path, "looking for it changes nothing"

    outcome = with_runner(target, tmp_path, lambda runner: runner.run({"n": 1}, {}))
    assert outcome.result == 2


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


def test_sources_are_files_with_text(agent: Path, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert sources_of_function(f"{agent}:solve") == {str(agent): AGENT}
    assert list(sources_of_function("rllm_gateway.client:reward")) == ["rllm_gateway.client"]
    assert sources_of_command([sys.executable, str(agent), str(tmp_path / "binary"), "--fast"]) == {str(agent): AGENT}


def command(tmp_path: Path, program: str, environment: dict[str, str] | None = None, **task: Any) -> Outcome:
    runner = CommandRunner([sys.executable, "-c", textwrap.dedent(program)], tmp_path)
    return asyncio.run(runner.run(task, environment or {}))


def test_program_reads_its_task_and_reports_reward(tmp_path: Path) -> None:
    program = """
        import json, os, sys
        task = json.load(sys.stdin)
        print("thinking")
        print(json.dumps({"reward": task["n"], "answer": os.environ["OPENAI_API_KEY"]}))
    """
    assert command(tmp_path, program, {"OPENAI_API_KEY": "k"}, n=2).result == {"reward": 2, "answer": "k"}


@pytest.mark.parametrize(
    ("lines", "result"),
    [
        (["x", '{"answer": 1}'], {"answer": 1}),
        *(([line], None) for line in ("42", "[1]", '{"other": 1}', "words", "")),
        (['{"answer": 1}', "x"], None),
        ([], None),
    ],
)
def test_only_last_object_with_reward_is_result(lines: list[str], result: Any) -> None:
    assert parse_result(lines) == result


def test_failed_program_is_reported_with_its_errors(tmp_path: Path) -> None:
    outcome = command(tmp_path, "print('fine'); raise SystemExit('out of luck')")
    assert "exit code 1" in outcome.failure
    assert outcome.failure.endswith("out of luck")


def test_missing_program_is_a_plugin_error(tmp_path: Path) -> None:
    with expect_error(PluginError, "agent-not-started", "no-such-program"):
        asyncio.run(CommandRunner(["no-such-program"], tmp_path).run({}, {}))


def test_a_cancelled_program_is_killed_with_its_children(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    program = f"""
        import os, subprocess
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
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
    wait_until(lambda: not any(map(is_alive, pids_in(file))))


SESSION = OpenedSession(id="x", key="k", url="http://127.0.0.1:4000/s/x")


def test_clients_find_the_session_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.setenv("GOOGLE_API_KEY", "the user's")
    variables = environment_of(SESSION, {"n": 1})
    assert variables["OPENAI_BASE_URL"] == f"{SESSION.url}/agent/v1"
    assert variables["ANTHROPIC_BASE_URL"] == variables["GOOGLE_GEMINI_BASE_URL"] == f"{SESSION.url}/agent"
    keys = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")
    assert {variables[key] for key in keys} == {"k"}
    assert variables["RLLM_TASK"] == '{"n": 1}'
    assert variables["NO_PROXY"] == "example.org,127.0.0.1,localhost"
    assert "RLLM_TASK" not in environment_of(SESSION, {"text": "a" * LONGEST}), "it is only on standard input"


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("0", "0")])
def test_openai_agents_sends_traces_only_on_request(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_AGENTS_DISABLE_TRACING", raising=False)
    if before is not None:
        monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", before)
    assert environment_of(SESSION, {})["OPENAI_AGENTS_DISABLE_TRACING"] == after


async def start(setup: SandboxSetup) -> Sandbox:
    return await start_local(None, setup)


def run(command: Sequence[str], instruction: str) -> Outcome:
    runner = SandboxRunner(command, start, seconds=60.0)
    return asyncio.run(runner.run({"instruction": instruction}, {URL: "http://127.0.0.1:9"}))


@pytest.mark.parametrize(("letter", "length"), [("x", 140_000), ("ä", LONGEST // 2 + 1)])
def test_long_instruction_is_on_standard_input_only(letter: str, length: int) -> None:
    source = "import json, os, sys; print(len(json.load(sys.stdin)['instruction']), 'RLLM_INSTRUCTION' in os.environ)"
    outcome = run(["python3", "-c", source], letter * length)
    assert outcome.last_lines == (f"{length} False",)


def test_long_instruction_as_an_argument_is_an_error() -> None:
    with expect_error(RolloutError, "instruction-too-long", "140000"):
        run(["echo", "{instruction}"], "x" * 140_000)


def test_variable_with_the_directory_is_the_sandbox() -> None:
    outcome = run(["python3", "-c", "import os; print(os.environ['PWD'] == os.getcwd())"], "x")
    assert outcome.last_lines == ("True",)
