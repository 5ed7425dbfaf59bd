"""Sessions of a rollout that ends while its seats still call the policy."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rllm_core.errors import BackendError
from rllm_envs import sessions as module
from rllm_envs.verifiers.client import Seats
from rllm_gateway.sessions.link import OpenedSession


class Gateway:
    """The sessions that are open. A session opens once `answers` is set."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.failing: set[str] = set()
        self.answers = asyncio.Event()


class Session:
    def __init__(self, gateway: Any, *_: Any, part: str) -> None:
        self._gateway, self._part = gateway, part

    async def open(self) -> OpenedSession:
        await self._gateway.answers.wait()
        self._gateway.open.append(self._part)
        return OpenedSession(id=self._part, key="k", url="http://127.0.0.1:1")

    async def close(self) -> tuple[Any, Any]:
        if self._part in self._gateway.failing:
            raise BackendError("gateway-failed", self._part, "")
        self._gateway.open.remove(self._part)
        return None, None


def make_seats(gateway: Any, monkeypatch: pytest.MonkeyPatch, *names: str) -> Seats:
    """Seats with a run of each name. The id of its trace is the name."""
    monkeypatch.setattr(module, "RolloutSession", Session)
    seats = Seats(gateway, SimpleNamespace(), {}, "t:0")  # type: ignore[arg-type]
    for name in names:
        seats.add(SimpleNamespace(id=name, agent=SimpleNamespace(name=name)))  # type: ignore[arg-type]
    return seats


def test_session_that_opens_during_close_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        gateway = Gateway()
        seats = make_seats(gateway, monkeypatch, "a", "b")
        opening = asyncio.create_task(seats.find_session("a"))
        await asyncio.sleep(0)
        closing = asyncio.create_task(seats.close())
        await asyncio.sleep(0)
        gateway.answers.set()
        assert len(await closing) == 1
        assert await opening
        assert await seats.find_session("a") is None
        assert await seats.find_session("b") is None
        assert gateway.open == []

    asyncio.run(run())


def test_close_after_an_error_closes_the_other_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        gateway = Gateway()
        gateway.answers.set()
        gateway.failing = {"a-0", "b-0"}
        seats = make_seats(gateway, monkeypatch, "a", "b", "c")
        for name in "abc":
            await seats.find_session(name)
        with pytest.raises(BackendError, match="a-0"):
            await seats.close()
        assert gateway.open == ["a-0", "b-0"]

    asyncio.run(run())
