"""The sessions of one rollout of verifiers: each run of a seat has its own."""

from __future__ import annotations

from collections import Counter
from typing import Any

import verifiers.v1 as vf

from rllm_envs.sessions import SeatSessions
from rllm_gateway.sessions.link import OpenedSession


class Seats(SeatSessions):
    """Finds the session of a run by the id of its trace."""

    def __init__(self, *inputs: Any) -> None:
        super().__init__(*inputs)
        self.traces: dict[str, vf.Trace] = {}
        """Traces of all runs, by id."""
        self._numbers: Counter[str] = Counter()

    def add(self, trace: vf.Trace) -> None:
        """Add a new run, before its first model call."""
        name = trace.agent.name
        self.traces[trace.id] = trace
        self.add_seat(trace.id, f"{name}-{self._numbers[name]}")
        self._numbers[name] += 1

    async def find_session(self, trace: str) -> tuple[OpenedSession, str] | None:
        """Return the open session of a trace, and the name of its seat. None if the rollout has ended.

        Raises:
            BackendError: see `SeatSessions.find`.
        """
        address = await self.find(trace)
        return None if address is None else (address, self.traces[trace].agent.name)
