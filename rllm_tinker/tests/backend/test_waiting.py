"""Waiting ends: with the result, with the service's error in our words, or with a service that is gone or too slow."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from typing import Any

import pytest

from rllm_core.errors import BackendError
from rllm_tinker import waiting as waiting_module
from rllm_tinker.waiting import Waiting


class FakeHealth:
    def __init__(self, *problems: str | None) -> None:
        self._problems = list(problems)

    async def problem(self) -> str | None:
        return self._problems.pop(0) if len(self._problems) > 1 else self._problems[0]


class ClientFuture:
    """Has the one method of the client's futures that is used."""

    def __init__(self) -> None:
        self.inner: Future[Any] = Future()

    def future(self) -> Future[Any]:
        return self.inner


class ServiceError(Exception):
    def __init__(self, **attributes: object) -> None:
        super().__init__("because of that")
        vars(self).update(attributes)


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_module, "BETWEEN_LOOKS", 0.01)


def _wait(future: ClientFuture, health: FakeHealth, *, patience: float = 0.1, longest: float = 100.0) -> Any:
    return asyncio.run(Waiting(health, patience=patience, longest=longest).for_result(future, "The step"))


def test_a_result_is_returned() -> None:
    future = ClientFuture()
    future.inner.set_result(5)
    assert _wait(future, FakeHealth(None)) == 5


def test_unreachable_service_fails_after_the_connect_timeout() -> None:
    future = ClientFuture()
    with pytest.raises(BackendError, match=r"(?s)0.1 s: nobody is there\..*--resume"):
        _wait(future, FakeHealth("nobody is there"))
    assert future.inner.cancelled()


def test_a_service_that_comes_back_is_waited_for() -> None:
    future = ClientFuture()

    async def answer_later() -> Any:
        waiting = Waiting(FakeHealth("gone", "gone", None), patience=50.0, longest=100.0)
        asyncio.get_running_loop().call_later(0.3, future.inner.set_result, 7)
        return await waiting.for_result(future, "The step")

    assert asyncio.run(answer_later()) == 7


def test_a_result_that_never_comes_is_given_up() -> None:
    with pytest.raises(BackendError, match=r"(?s)0.2 s.*tinker_timeout"):
        _wait(ClientFuture(), FakeHealth(None), longest=0.2)


@pytest.mark.parametrize(
    ("attributes", "code", "message"),
    [
        ({"status_code": 401}, "bad-api-key", "(?s)API key .*TINKER_API_KEY"),
        ({"status_code": 404}, "service-rejected-request", "(?s)404.*tinker_base_url"),
        ({"status_code": 410}, "service-lost-state", "(?s)410.*--resume"),
        ({"status_code": 429}, "service-rate-limit", "(?s)429.*n_parallel_tasks"),
        ({"status_code": 503}, "service-failed", "(?s)503.*--resume"),
        ({"status_code": 400}, "service-rejected-request", "(?s)400.*Change the setting"),
        ({"category": "user"}, "service-rejected-request", "Change the setting"),
        ({"category": "server"}, "service-failed", "--resume"),
    ],
)
def test_errors_of_the_service_say_what_to_do(attributes: dict[str, Any], code: str, message: str) -> None:
    future = ClientFuture()
    future.inner.set_exception(ServiceError(**attributes))
    with pytest.raises(BackendError, match=message) as caught:
        _wait(future, FakeHealth(None))
    assert caught.value.code == code
    assert "because of that" in str(caught.value)


def test_a_blocking_call_is_given_up_as_well() -> None:
    waiting = Waiting(FakeHealth("nobody is there"), patience=0.1, longest=100.0)
    with pytest.raises(BackendError, match="nobody is there"):
        asyncio.run(waiting.for_thread(lambda: time.sleep(1), "Opening a session"))
