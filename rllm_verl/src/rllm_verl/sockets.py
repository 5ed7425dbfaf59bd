"""The sockets by which verl hands weights to vLLM: their paths name the run.

verl names them after Ray's job, and the first job of every cluster has the same number: two runs on one machine, each
with a cluster of its own, would share a path.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

RUN = "RLLM_VERL_RUN"
"""Environment variable of a run's processes, with its name in those paths."""
OF_VERL = "VERL_RAY_JOB_ID"
"""What verl's part inside vLLM reads there."""
PLUGIN = "rllm-verl-sockets"
"""Entry point ``vllm.general_plugins`` of `register`."""
CHOSEN_PLUGINS = "VLLM_PLUGINS"
"""vLLM loads these alone, where it is set."""


def new_run() -> dict[str, str]:
    """The variable for the processes of one run."""
    return {RUN: uuid.uuid4().hex}


def name_socket(rollout: Any, job: str) -> None:
    """Let a worker send to the path of its run; `rollout` is verl's handle on vLLM, and `job` Ray's job id in hex."""
    run, path = _run(), getattr(rollout, "zmq_handle", None)
    if run is not None and path is not None:
        rollout.zmq_handle = path.replace(f"-{job}-", f"-{run}-")


def register() -> None:
    """Let vLLM receive at the path of its run. vLLM calls it in each of its processes."""
    if (run := _run()) is not None:
        os.environ[OF_VERL] = run


def _run() -> str | None:
    """The run's name; None where vLLM does not load this plugin, so that both sides keep verl's own path."""
    chosen = os.environ.get(CHOSEN_PLUGINS)
    return None if chosen is not None and PLUGIN not in chosen.split(",") else os.environ.get(RUN)
