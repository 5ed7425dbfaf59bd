"""A directory of a process that was killed is removed by the next one, with the processes that were left running."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from live_processes import is_alive

from rllm_serving.process_directory import VARIABLE, ProcessDirectory, remove_abandoned_directories

KILLED = """
import os, signal, subprocess, sys
from pathlib import Path
from rllm_serving.process_directory import ProcessDirectory
directory = ProcessDirectory("rllm-test-", Path(sys.argv[1]))
directory.claim_children()
child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL) if sys.argv[2] == "dies" else sys.stdin.read()
"""


def _process(place: Path, what: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(place), what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_directories_of_killed_processes_are_removed_with_children(tmp_path: Path) -> None:
    living, _ = _process(tmp_path, "lives")
    (kept,) = tmp_path.iterdir()
    process, child = _process(tmp_path, "dies")
    process.communicate()
    (left,) = {*tmp_path.iterdir()} - {kept}

    assert remove_abandoned_directories(tmp_path) == [left]

    assert [*tmp_path.iterdir()] == [kept]
    while is_alive(child):  # until the signal arrives; the test's time limit is the bound
        time.sleep(0.01)
    living.kill()
    living.communicate()
    with ProcessDirectory("rllm-test-", tmp_path) as made:
        assert list(tmp_path.iterdir()) == [made.path]
    assert list(tmp_path.iterdir()) == []


def test_kept_directory_is_not_removed(tmp_path: Path) -> None:
    kept = ProcessDirectory("rllm-test-", tmp_path)
    kept.keep()
    assert remove_abandoned_directories(tmp_path) == []
    assert kept.path.is_dir()


def test_closing_takes_mark_from_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with ProcessDirectory("rllm-test-", tmp_path) as made:
        made.claim_children()
        assert os.environ[VARIABLE] == str(made.path)
    assert VARIABLE not in os.environ
