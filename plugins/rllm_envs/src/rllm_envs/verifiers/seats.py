"""The sessions of one rollout: each run of a seat that calls the policy has its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import verifiers.v1 as vf

from rllm_core.contracts.workflow import WorkflowContext
from rllm_gateway.episodes import Traced
from rllm_gateway.link import OpenedSession, SessionTrace
from rllm_gateway.rollout_session import OpenedGateway, RolloutSession


@dataclass(eq=False)
class SeatRun:
    """One run of a seat, which verifiers records as a trace."""

    trace: vf.Trace
    session: RolloutSession
    address: OpenedSession | None = None
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, kw_only=True)
class ClosedRun:
    """The calls of a seat's run."""

    trace: vf.Trace
    session: RolloutSession
    calls: SessionTrace
    made: Traced


class Seats:
    """Opens a session at the first model call of each run."""

    def __init__(self, gateway: OpenedGateway, context: WorkflowContext, task: Mapping[str, Any], uid: str) -> None:
        self._gateway, self._context, self._task, self._uid = gateway, context, task, uid
        self._runs: dict[str, SeatRun] = {}
        self._numbers: Counter[str] = Counter()
        self._is_closed = False

    def add(self, trace: vf.Trace) -> None:
        """Note a new run, before its first model call."""
        name = trace.agent.name
        part = f"{name}-{self._numbers[name]}"
        self._numbers[name] += 1
        session = RolloutSession(self._gateway, self._context, self._task, self._uid, part=part)
        self._runs[trace.id] = SeatRun(trace, session)

    @property
    def traces(self) -> list[str]:
        """Ids of the traces of all runs."""
        return list(self._runs)

    async def find_session(self, trace: str) -> tuple[OpenedSession, str] | None:
        """Return the open session of a trace, and the name of its seat. None if the rollout has ended.

        Raises:
            BackendError: the gateway rejected the session, has stopped, or does not answer.
        """
        run = self._runs[trace]
        async with run.opening:
            if self._is_closed:
                return None
            if run.address is None:
                run.address = await run.session.open()
        return run.address, run.trace.agent.name

    async def close(self) -> list[ClosedRun]:
        """Seal all sessions, and return their calls. Later calls find no session.

        Raises:
            BackendError: the gateway has stopped, or does not answer. The other sessions are closed anyway.
        """
        self._is_closed = True
        closed = await asyncio.gather(*map(_close, self._runs.values()), return_exceptions=True)
        for each in closed:
            if isinstance(each, BaseException):
                raise each
        return [each for each in closed if isinstance(each, ClosedRun)]


async def _close(run: SeatRun) -> ClosedRun | None:
    """Close the session of a run. None if the run called no model."""
    async with run.opening:
        if run.address is None:
            return None
        calls, made = await run.session.close()
        return ClosedRun(trace=run.trace, session=run.session, calls=calls, made=made)
