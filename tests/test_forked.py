"""A forked command ends like a new process: its exit code, its threads, its functions at exit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked import CommandServer

PROGRAM = """
import atexit, sys, threading, time

def work():
    time.sleep(0.1)
    print("worked")

atexit.register(print, "at exit")
threading.Thread(target=work).start()
print("ends")
"""
LAST_LINES = {
    "the last line": ("", 0),
    "sys.exit()": ("sys.exit()", 0),
    "a code": ("sys.exit(7)", 7),
    "a text": ("sys.exit('a text')", 1),
    "an exception": ("1 / 0", 1),
}


@pytest.mark.parametrize(("last", "code"), LAST_LINES.values(), ids=LAST_LINES)
def test_fork_joins_threads_and_calls_exit_functions(
    last: str, code: int, command_server: CommandServer, tmp_path: Path
) -> None:
    (tmp_path / "command.py").write_text(f"{PROGRAM}{last}\n")
    process = command_server.start("command", [], tmp_path, dict(os.environ))
    printed, errors = process.communicate()
    new = subprocess.run([sys.executable, "-m", "command"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (process.returncode, printed) == (code, "ends\nworked\nat exit\n") == (new.returncode, new.stdout)
    assert errors.splitlines()[-1:] == new.stderr.splitlines()[-1:]
