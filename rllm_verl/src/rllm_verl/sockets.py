"""The sockets through which verl passes weights to vLLM, with paths that contain the run's name.

verl's paths contain Ray's job number. The first job of every cluster has the same number, so two runs on one machine
with separate clusters would share a path.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

RUN = "RLLM_VERL_RUN"
"""Environment variable of a run's processes with the run's name in these paths."""
OF_VERL = "VERL_RAY_JOB_ID"
"""The variable that verl's code inside vLLM reads instead."""
PLUGIN = "rllm-verl-sockets"
"""Name of the entry point ``vllm.general_plugins`` for `register`."""
CHOSEN_PLUGINS = "VLLM_PLUGINS"
"""If this variable is set, vLLM loads only the plugins in it."""


def new_run() -> dict[str, str]:
    """Return the variable with a new name, for the processes of one run."""
    return {RUN: uuid.uuid4().hex}


def name_socket(rollout: Any, job: str) -> None:
    """Make a worker send to its run's path. `rollout` is verl's handle on vLLM, and `job` is Ray's job id in hex."""
    run, path = _run(), getattr(rollout, "zmq_handle", None)
    if run is not None and path is not None:
        rollout.zmq_handle = path.replace(f"-{job}-", f"-{run}-")


def name_socket_of_receiver(receiver: Any) -> None:
    """Make a separate server's receiver, in its process, send to its run's path."""
    import ray

    name_socket(receiver.server_adapter, ray.get_runtime_context().get_job_id())


def register() -> None:
    """Make vLLM receive at its run's path. vLLM calls this function in each of its processes."""
    if (run := _run()) is not None:
        os.environ[OF_VERL] = run


def _run() -> str | None:
    """Return the run's name. None if vLLM does not load this plugin, so that both sides use verl's own path."""
    chosen = os.environ.get(CHOSEN_PLUGINS)
    return None if chosen is not None and PLUGIN not in chosen.split(",") else os.environ.get(RUN)
