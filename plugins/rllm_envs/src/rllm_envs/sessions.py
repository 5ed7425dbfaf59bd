"""The gateway sessions of one rollout: each seat that calls the policy has its own."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Container, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllm_core.algorithms.columns import REWARD_COMPONENTS, REWARD_ERROR
from rllm_core.contracts.workflow import OpenedRun, WorkflowContext
from rllm_core.data.types import Trajectory
from rllm_gateway.running.episodes import SessionTrajectories
from rllm_gateway.running.rollout_session import OpenedGateway, RolloutSession
from rllm_gateway.serving.opening import open_gateway
from rllm_gateway.sessions.link import OpenedSession, SessionTrace
from rllm_serving.process_directory import ProcessDirectory

UNTRAINED = "untrained_seat"
ROWS, TRAINED, EXCLUDED = "gateway/rows", "gateway/trained_tokens", "gateway/excluded_tokens"


@dataclass(eq=False)
class Seat:
    """A seat, and its session once it has called the policy."""

    session: RolloutSession
    address: OpenedSession | None = None
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, kw_only=True)
class SeatCalls:
    """The calls of a seat."""

    key: str
    session: RolloutSession
    calls: SessionTrace
    made: SessionTrajectories


class SeatSessions:
    """Opens a session at the first model call of each seat."""

    def __init__(self, gateway: OpenedGateway, context: WorkflowContext, task: Mapping[str, Any], uid: str) -> None:
        self._gateway, self._context, self._task, self._uid = gateway, context, task, uid
        self._seats: dict[str, Seat] = {}
        self._is_closed = False

    def add_seat(self, key: str, part: str) -> None:
        """Add a seat, before its first model call. `part` is the name of its session in the rollout."""
        self._seats[key] = Seat(RolloutSession(self._gateway, self._context, self._task, self._uid, part=part))

    async def find(self, key: str) -> OpenedSession | None:
        """Return the open session of a seat. None if the rollout has ended.

        Raises:
            BackendError: the gateway rejected the session, has stopped, or does not answer.
        """
        seat = self._seats[key]
        async with seat.opening:
            if self._is_closed:
                return None
            if seat.address is None:
                seat.address = await seat.session.open()
        return seat.address

    async def close(self) -> list[SeatCalls]:
        """Seal all sessions, and return their calls. Later calls find no session.

        Raises:
            BackendError: the gateway has stopped, or does not answer. The other sessions are closed anyway.
        """
        self._is_closed = True
        closed = await asyncio.gather(*map(_close, self._seats, self._seats.values()), return_exceptions=True)
        for each in closed:
            if isinstance(each, BaseException):
                raise each
        return [each for each in closed if isinstance(each, SeatCalls)]


async def _close(key: str, seat: Seat) -> SeatCalls | None:
    """Close the session of a seat. None if the seat called no model."""
    async with seat.opening:
        if seat.address is None:
            return None
        calls, made = await seat.session.close()
        return SeatCalls(key=key, session=seat.session, calls=calls, made=made)


def sum_metrics(seats: Iterable[SeatCalls], trained: Container[str]) -> Mapping[str, float]:
    """Return the sums of the gateway's metrics. Tokens of seats whose key is not in `trained` are excluded tokens."""
    sums: defaultdict[str, float] = defaultdict(float)
    for seat in seats:
        metrics = dict(seat.made.metrics)
        if seat.key not in trained:
            tokens = metrics[TRAINED]
            metrics |= {
                ROWS: 0.0,
                TRAINED: 0.0,
                EXCLUDED: metrics[EXCLUDED] + tokens,
                f"{EXCLUDED}/{UNTRAINED}": tokens,
            }
        for name, value in metrics.items():
            sums[name] += value
    return sums


def set_reward(
    trajectory: Trajectory, reward: float | None, cause: str | None, components: Mapping[str, float]
) -> None:
    """Set the reward of a trajectory and its components, or the cause of a missing reward. The last step gets the
    whole reward."""
    trajectory.reward = reward
    for step in trajectory.steps:
        step.reward = None if reward is None else 0.0
    trajectory.steps[-1].reward = reward
    if cause:
        trajectory.info[REWARD_ERROR] = cause
    else:
        trajectory.info[REWARD_COMPONENTS] = dict(components)


@asynccontextmanager
async def serve_gateway(run: OpenedRun) -> AsyncIterator[tuple[OpenedGateway, Path]]:
    """Serve the gateway of a run until the context ends. Return it with a directory for files of the run."""
    with ProcessDirectory("rllm-gateway-") as files:
        async with open_gateway(run, files.path) as gateway:
            yield gateway, files.path


def is_too_long(seat: SeatCalls) -> bool:
    """True if a prompt of the seat exceeded the limit."""
    return bool(seat.session.sampler.too_long or seat.calls.too_long)
