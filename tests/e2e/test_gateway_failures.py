"""A killed gateway: its run ends with the reason, and answered calls are kept."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from expecting import check_printed
from live_processes import is_alive

from rllm_gateway.calls import CallReader

DEADLINE = 120
AGENT = """
import os, time
from openai import OpenAI

def solve(task):
    OpenAI().chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    open(f"{os.getpid()}.pid", "w").close()
    time.sleep(1000)
"""


@pytest.mark.smoke
def test_killed_gateway_fails_the_run_with_reason(start_forked_rllm: Any, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    words = ["train", "sum", "--agent", "agent.py:solve", "rllm.rollout.n=2", "rllm.sdk.store.path=traces.db"]
    words += ["rllm.trainer.val_before_train=false", "data.max_response_length=4", "data.train_batch_size=2"]
    run = start_forked_rllm(*words)
    while len(agents := list(tmp_path.glob("*.pid"))) < 4:
        assert run.poll() is None
        time.sleep(0.1)
    gateway = gateway_of(run.pid)
    assert "torch" not in Path(f"/proc/{gateway}/maps").read_text(), "its memory has the libraries of torch"
    os.kill(gateway, signal.SIGKILL)
    _, said = run.communicate(timeout=DEADLINE)
    assert run.returncode not in (0, -signal.SIGKILL)
    check_printed(said, "gateway-ended", "gateway")
    assert "Traceback" not in said
    with CallReader.open(tmp_path / "traces.db") as reader:
        assert [each.calls for each in reader.sessions()] == [1] * 4
    while any(is_alive(int(agent.stem)) for agent in agents):
        time.sleep(0.1)


def gateway_of(run: int) -> int:
    """Return the process of a run's gateway."""
    children = [int(pid) for file in Path(f"/proc/{run}/task").glob("*/children") for pid in file.read_text().split()]
    (found,) = (pid for pid in children if "rllm_gateway.serving.child" in Path(f"/proc/{pid}/cmdline").read_text())
    return found
