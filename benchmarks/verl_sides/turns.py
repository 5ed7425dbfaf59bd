"""A side's connection to the measuring process: it reports the end of a step, and waits for its turn."""

from __future__ import annotations

import json
import os
import socket
import time
from functools import wraps
from typing import Any

LINE = "RLLM_VERL_LINE"
"""Environment variable: port of the measuring process, on this machine."""
TRANSFER = ("update_weights", "sleep_replicas")
"""verl's functions that move weights to rollout servers and unload them, on both sides."""


class Turns:
    """The turns of a trainer. Both trainers exist at once, and only one makes a step at a time."""

    def __init__(self) -> None:
        connection = socket.create_connection(("127.0.0.1", int(os.environ[LINE])))
        self._line = connection.makefile("rw")
        self._spent: dict[str, float] = {}
        self._began = time.perf_counter()

    def time_transfer(self) -> None:
        """Add up the seconds of calls that move weights."""
        from verl.checkpoint_engine import CheckpointEngineManager

        for name in TRANSFER:
            setattr(CheckpointEngineManager, name, self._timed(name, getattr(CheckpointEngineManager, name)))

    def transfer_seconds(self, call: str) -> float:
        """Spent in one of `TRANSFER` in this step."""
        return self._spent.get(call, 0.0)

    def end_step(self, *, step: float, generation: float, tokens: float) -> None:
        """Report the step since the last call, and wait for the next turn.

        Args:
            step: the trainer's own seconds of the step, without metrics, logging and the next prompts.
            generation: its seconds until all responses have their rewards, without `TRANSFER`.
            tokens: number of tokens in the rows of its batch.
        """
        metrics = {
            "began": self._began,
            "ended": time.perf_counter(),
            "step": step,
            "generation": generation,
            "transfer": sum(self._spent.values()),
            "tokens": tokens,
        }
        self._line.write(json.dumps({name: float(value) for name, value in metrics.items()}) + "\n")
        self._line.flush()
        if not self._line.readline():
            raise SystemExit("whoever measures is gone")
        self._spent.clear()
        self._began = time.perf_counter()

    def _timed(self, name: str, method: Any) -> Any:
        @wraps(method)
        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            result = method(*arguments, **named)
            self._spent[name] = self.transfer_seconds(name) + time.perf_counter() - start
            return result

        return timed
