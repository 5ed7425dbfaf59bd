"""Child processes are announced, answer, and end with their parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from live_processes import commands_with, is_alive

from rllm_serving.child_process import ChildProcess
from rllm_serving.line_process import DiedError, LateError, LineProcess, NotReadyError, StrayAnswerError
from rllm_serving.listening import EndedError, wait_for_url

DEADLINE = 100.0
UNTIL_INPUT_ENDS = """
import asyncio, sys
from rllm_serving.child_process import when_parent_ends
async def main():
    ended = asyncio.Event()
    when_parent_ends(ended.set)
    print("watching", flush=True)
    await ended.wait()
asyncio.run(main())
"""
COMPUTES = """
from rllm_serving.child_process import end_with_parent
end_with_parent()
print("watching", flush=True)
while True:
    pass
"""
NEVER = "import signal; signal.pause()"
SPAWNS = """
import sys
from pathlib import Path
from rllm_serving.child_process import ChildProcess
child = ChildProcess.spawn([sys.executable, "-c", {program!r}], Path({log!r}), {{}})
while "watching" not in child.log.read_text():
    pass
print(child.pid, flush=True)
import signal; signal.pause()
"""
STARTS_DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
print("ready", flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
"""
ASKS_DAEMON = """
from rllm_serving.line_process import LineProcess
process = LineProcess.start("rllm_test_daemon")
print(process.ask("x"), flush=True)
{end}
"""
ECHO = """
import sys, time
print(sys.argv[1], flush=True)
for line in sys.stdin:
    number, question = line.split()
    if question == "die":
        sys.exit(7)
    if question == "late":
        time.sleep(1000)
    print(number, question[::-1], flush=True)
"""


def spawn(directory: Path, program: str) -> ChildProcess:
    return ChildProcess.spawn([sys.executable, "-c", program], directory / "log", {"SAID": "yes"})


def test_log_tail_has_output_and_exit_code(tmp_path: Path) -> None:
    child = spawn(tmp_path, "import os; print('a'); print(os.environ['SAID'])")
    asyncio.run(child.end(DEADLINE))
    assert child.exit_code == 0
    assert child.log_tail().splitlines()[1:] == ["a", "yes", "(exit code 0)"]


def test_hanging_child_is_killed_with_its_children(tmp_path: Path) -> None:
    starts = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {NEVER!r}]); print(p.pid, flush=True)"
    )
    child = spawn(tmp_path, f"{starts}; {NEVER}")
    while not child.log.read_text().endswith("\n"):
        assert child.exit_code is None
    grandchild = int(child.log.read_text())
    asyncio.run(child.end(0.0))
    assert child.exit_code == -signal.SIGKILL
    assert "SIGKILL" in child.log_tail().splitlines()[-1]
    while is_alive(grandchild):
        pass


@pytest.mark.parametrize("what", [UNTIL_INPUT_ENDS, COMPUTES], ids=["waiting", "computing"])
def test_a_child_ends_when_its_parent_is_killed(what: str, tmp_path: Path) -> None:
    program = SPAWNS.format(program=what, log=str(tmp_path / "log"))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    while is_alive(pid):
        pass


def test_only_a_server_that_runs_announces_its_url(tmp_path: Path) -> None:
    file = tmp_path / "announced.json"
    content = json.dumps({"url": "http://x:1", "port": 1, "pid": 2})
    announce = f"open('new', 'w').write({content!r}); os.rename('new', {str(file)!r})"
    child, ended = spawn(tmp_path, f"import os; os.chdir({str(tmp_path)!r}); {announce}; {NEVER}"), spawn(tmp_path, "")
    assert asyncio.run(wait_for_url(file, child, DEADLINE)) == "http://x:1"
    with pytest.raises(EndedError):
        asyncio.run(wait_for_url(tmp_path / "none", ended, DEADLINE))
    with pytest.raises(TimeoutError):
        asyncio.run(wait_for_url(tmp_path / "none", child, 0.0))
    child.kill()
    ended.kill()


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that answers lines backwards, and says its first argument first."""
    (tmp_path / "rllm_test_echo.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return "rllm_test_echo"


def test_lines_are_answered_until_death_or_timeout(echo: str) -> None:
    dying, slow = (LineProcess.start(echo, ["ready"]) for _ in range(2))
    assert [dying.ask(line) for line in ("abc", "12")] == ["cba", "21"]
    with pytest.raises(DiedError, match="ended with 7") as died:
        dying.ask("die")
    assert died.value.code == 7
    with pytest.raises(LateError, match=r"0\.1 s"):
        slow.ask("late", within=0.1)


def test_a_process_that_is_not_ready_says_why(echo: str) -> None:
    with pytest.raises(NotReadyError, match="no such thing"):
        LineProcess.start(echo, ["no such thing"])
    with pytest.raises(DiedError, match="does not start"):
        LineProcess.start("rllm_no_such_module")


@pytest.mark.parametrize("end", ["", "1 / 0", "input()", "import os, signal; os.kill(os.getpid(), signal.SIGINT)"])
def test_daemon_ends_with_the_program(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rllm_test_daemon.py").write_text(STARTS_DAEMON)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    pipe = subprocess.PIPE
    program = [sys.executable, "-c", ASKS_DAEMON.format(end=end)]
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"x\n"
        if "input" in end:
            while len(commands_with("PYTHONPATH", os.environ["PYTHONPATH"])) < 4:
                pass
            parent.kill()
    while commands_with("PYTHONPATH", os.environ["PYTHONPATH"]):
        pass


def test_late_line_answers_no_later_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rllm_test_twice.py").write_text("""
print("ready", flush=True)
for _ in range(2):
    number = input().split()[0]
    print(number, "x")
    print(number, "y", flush=True)
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    process = LineProcess.start("rllm_test_twice")
    assert process.ask("a") == "x"
    with pytest.raises(StrayAnswerError, match="'1' instead of an answer to call 2"):
        process.ask("b")
    assert process.exit_code is not None
