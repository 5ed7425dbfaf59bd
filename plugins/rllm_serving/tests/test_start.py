"""A server that does not start, and addresses that cannot be used."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError
from rllm_serving.http_server import HttpServer, NotStartedError
from rllm_serving.listening import is_loopback, listen, reachable_url, url_of
from rllm_serving.middleware import KeyRule, check_binding

RULE: dict[str, Any] = {"header": "X-Key", "variable": "THE_KEY", "example": "abc"}


def test_application_that_fails_to_start_raises_and_stops() -> None:
    async def fail_to_start(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "by nothing"})

    async def start() -> None:
        server = HttpServer(fail_to_start, listen(), lifespan="on")
        with pytest.raises(NotStartedError):
            await server.start()
        await server.stop()

    asyncio.run(start())


def test_a_taken_port_is_said() -> None:
    with listen() as first:
        port = first.getsockname()[1]
        assert url_of(first) == f"http://127.0.0.1:{port}"
        with expect_error(ConfigError, "port-unavailable", port):
            listen(port=port)


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://0.0.0.0:80", "http://127.0.0.1:80"),
        ("http://[::]:80", "http://[::1]:80"),
        ("http://10.0.0.0:80", "http://10.0.0.0:80"),
    ],
)
def test_an_address_of_all_is_reached_by_one(url: str, here: str) -> None:
    assert reachable_url(url) == here


def test_other_machines_need_a_key() -> None:
    check_binding("127.0.0.1", KeyRule(keys=(), **RULE))
    check_binding("0.0.0.0", KeyRule(keys=("abc",), **RULE))
    with expect_error(ConfigError, "missing-api-key") as refused:
        check_binding("0.0.0.0", KeyRule(keys=(), **RULE))
    assert "THE_KEY" in refused.value.hint


@pytest.mark.parametrize(
    ("host", "ours"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True), ("10.0.0.1", False)],
)
def test_addresses_that_only_this_machine_reaches(host: str, ours: bool) -> None:
    assert is_loopback(host) is ours
