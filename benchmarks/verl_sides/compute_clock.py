"""Logs when a training process computes, in the process of verl's FSDP engine, which both sides call.

verl imports this module in every process that reads the model's configuration (``…model.external_lib``).
"""

from __future__ import annotations

import json
import os
import time
from functools import wraps
from pathlib import Path
from typing import Any

from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

SPANS = "RLLM_VERL_SPANS"
"""Environment variable with the path of the log. A line is ``[start, end]`` in seconds of the
machine's monotonic clock, for every pass over a batch, with or without gradients, and every step of the optimizer."""


def _timed(name: str) -> None:
    method = getattr(FSDPEngine, name)

    @wraps(method)
    def timed(*arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return method(*arguments, **named)
        finally:
            with Path(os.environ[SPANS]).open("a") as file:
                file.write(json.dumps([start, time.perf_counter()]) + "\n")

    setattr(FSDPEngine, name, timed)


for _name in ("forward_backward_batch", "optimizer_step"):
    _timed(_name)
