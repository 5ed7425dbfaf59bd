"""Reward functions that misuse their process: no process stays, and the next call is right."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live_processes import commands_with

from rllm.builtin.tasks.python_reward import PythonParams, python_reward
from rllm_core.contracts.reward import Rollout, Score

MakeRollout = Callable[..., Rollout]
MARK = "RLLM_TEST_OF_BAD_FUNCTIONS"
SOURCE = """
import asyncio, atexit, multiprocessing, os, resource, signal, subprocess, sys, threading, time, types
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]

def sleep():
    time.sleep(600)

def fork(work):
    if os.fork() == 0:
        work()
        os._exit(0)

def daemon():
    os.setsid()
    fork(sleep)

def bad():
{body}

def score(rollout):
    if rollout.response.content == "bad":
        return bad()
    return float(rollout.response.content)
"""
LATE: Any = "late"
QUICK = {
    "fork_and_return": ("os.fork(); return 5", 5.0),
    "daemon": ("fork(daemon); return 5", 5.0),
}
OTHERS = {
    "fork_and_raise": ("if os.fork() == 0: raise KeyError\nreturn 5", 5.0),
    "line_in_the_pipe": ("for each in range(3, 256):\n  try: os.write(each, b'7\\n')\n  except OSError: pass", None),
    "stop_itself": ("os.kill(os.getpid(), signal.SIGSTOP)", LATE),
    "fork_and_exit": ("if os.fork() == 0: sys.exit(3)\nreturn 5", 5.0),
    "small_fork_bomb": ("for _ in range(6): os.fork()\nreturn 5", 5.0),
    "bomb_of_sessions": ("for _ in range(4):\n  if os.fork() == 0: os.setsid()\nsleep()", LATE),
    "daemon_and_hang": ("fork(daemon); sleep()", LATE),
    "daemon_without_its_parent": ("fork(daemon); os._exit(3)", None),
    "daemon_that_closes_all": ("fork(lambda: (os.closerange(0, 4096), daemon())); sleep()", LATE),
    "children_ignore_signals": ("for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\nfork(sleep); sleep()", LATE),
    "threads_that_never_end": ("for _ in range(9): threading.Thread(target=sleep).start()\nreturn 5", 5.0),
    "thread_that_exits_later": ("threading.Timer(0.05, os._exit, [3]).start(); return 5", 5.0),
    "alarm_later": ("signal.setitimer(signal.ITIMER_REAL, 0.05); return 5", 5.0),
    "children_hold_the_pipes": ("subprocess.Popen(SLEEP, close_fds=False); os._exit(3)", None),
    "child_holds_stderr": ("subprocess.Popen(SLEEP); return 5", 5.0),
    "child_in_a_session": ("subprocess.Popen(SLEEP, start_new_session=True); sleep()", LATE),
    "leave": ("os._exit(3)", None),
    "exit": ("sys.exit(3)", None),
    "signal_handlers": ("for n in {*signal.valid_signals()} - {9, 19, 32, 33}: signal.signal(n, print)\nsleep()", LATE),
    "kill_itself": ("os.kill(0, signal.SIGKILL)", None),
    "kill_its_parent": ("os.kill(os.getppid(), signal.SIGKILL); sleep()", None),
    "stop_its_parent": ("os.kill(os.getppid(), signal.SIGSTOP); sleep()", LATE),
    "flood": ("for _ in range(100): os.write(1, b'x' * 10000)\nreturn 5", 5.0),
    "close_descriptors": ("os.closerange(0, 21); return 5", 5.0),
    "close_all_descriptors": ("os.closerange(0, 4096); return 5", None),
    "change_directory": ("os.chdir('/'); return 5", 5.0),
    "delete_its_directory": ("os.mkdir('gone'); os.chdir('gone'); os.rmdir(os.getcwd()); return 5", 5.0),
    "change_environment": ("os.environ.clear(); os.environ['PYTHONHOME'] = '/'; return 5", 5.0),
    "change_path": ("sys.path.clear(); sys.modules.clear(); return 5", 5.0),
    "recursion": ("bad()", None),
    "small_recursion_limit": ("sys.setrecursionlimit(50); return 5", 5.0),
    "huge_result": ("return {'value': 5, 'feedback': 'x' * 30_000_000}", 5.0),
    "error_that_cannot_be_pickled": ("raise type('E', (Exception,), {'__reduce__': None})(sleep)", None),
    "base_exception": ("raise type('E', (BaseException,), {})", None),
    "interrupt": ("raise KeyboardInterrupt", None),
    "error_without_text": ("raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})", None),
    "result_that_is_no_json": ("return {'value': 5, 'metrics': {sleep: threading.Lock()}}", None),
    "endless_result": ("a = {'value': 5}; a['metrics'] = a; return a", None),
    "replace_itself": ("os.execv(SLEEP[0], SLEEP)", LATE),
    "nice": ("os.nice(19); return 5", 5.0),
    "few_descriptors": ("resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); return 5", 5.0),
    "no_processes": ("resource.setrlimit(resource.RLIMIT_NPROC, (0, 0)); return 5", 5.0),
    "exit_hook_that_hangs": ("atexit.register(sleep); return 5", 5.0),
    "exit_hook_and_exit": ("atexit.register(sleep); threading._register_atexit(sleep); sys.exit(3)", None),
    "open_pool": ("global pool\npool = multiprocessing.Pool(2)\nreturn sum(pool.map(abs, [2, 3]))", 5.0),
    "open_manager": ("global manager\nmanager = multiprocessing.get_context('spawn').Manager()\nreturn 5", 5.0),
    "loop_that_runs": ("threading.Thread(target=asyncio.new_event_loop().run_forever).start(); return 5", 5.0),
    "its_own_loop": ("asyncio.get_event_loop_policy().get_event_loop(); return asyncio.run(asyncio.sleep(0, 5))", 5.0),
    "child_without_wait": ("subprocess.Popen(['true']); return 5", 5.0),
    "new_stdout": ("sys.stdout = sys.stderr = None; sys.stdin.close(); return 5", 5.0),
}


@pytest.mark.parametrize(
    ("body", "value"),
    [
        *(pytest.param(*each, id=name) for name, each in QUICK.items()),
        *(pytest.param(*each, id=name, marks=pytest.mark.long) for name, each in OTHERS.items()),
    ],
)
def test_bad_function_leaves_nothing(
    body: str, value: Any, tmp_path: Path, rollout: MakeRollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards.py").write_text(SOURCE.format(body=textwrap.indent(body, "    ")))
    deadline = 1.0 if value is LATE else 60.0
    reward = python_reward(PythonParams(function="rewards.py:score", processes=1, deadline=deadline))
    scores = [_value(asyncio.run(reward(rollout(each)))) for each in ("1", "bad", "2", "3")]
    reward._pool.close()
    assert scores == [1.0, None if value is LATE else value, 2.0, 3.0]
    assert commands_with(MARK, str(tmp_path)) == []


def _value(result: Any) -> Any:
    return result.value if isinstance(result, Score) else result["value"]
