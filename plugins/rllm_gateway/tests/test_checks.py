"""Values of ``rllm.sdk`` that are rejected before anything is loaded."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from expecting import expect_error
from gateway_world import renderer

from rllm_core.contracts.workflow import OpenedRun
from rllm_core.errors import BackendError, ConfigError, RllmError
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.run_sections import ProxySection, SdkSection, StoreSection
from rllm_gateway.calls import CallReader, CallStore, SessionRow
from rllm_gateway.plugin import _open
from rllm_gateway.running.workflow import AgentParams
from rllm_gateway.serving import attaching as admin_token
from rllm_gateway.serving.attaching import RunSocket
from rllm_gateway.serving.checks import RUN_PORT, check_sdk
from rllm_gateway.serving.child import DEFAULT_PORT
from rllm_gateway.serving.gateway import Gateway


def own(path: Path, **proxy: object) -> SdkSection:
    return SdkSection(store=StoreSection(path=str(path)), proxy=ProxySection.model_validate({"port": free(), **proxy}))


def external(port: int, token: str | None = "secret") -> SdkSection:
    return SdkSection(proxy=ProxySection(mode="external", port=port - RUN_PORT, admin_token=token))


def free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_check_makes_no_store(tmp_path: Path) -> None:
    check_sdk(own(tmp_path / "new" / "traces.db"))
    assert not list(tmp_path.iterdir())
    CallStore.open(tmp_path / "traces.db").close()
    check_sdk(own(tmp_path / "traces.db"))


def damaged_store(path: Path) -> Path:
    """A store of which a page in the middle was overwritten. It still opens."""

    async def fill() -> None:
        with CallStore.open(path) as store:
            for number in range(200):
                row = SessionRow(
                    id=f"s{number}", run="r", rollout="a", retry=0, metadata={"x": "y" * 99}, key_hash="", opened=0.0
                )
                await store.add(row)

    asyncio.run(fill())
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 4096 // 2 * 4096)
        file.write(b"\xff" * 4096)
    CallReader.open(path).close()
    return path


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (Path.mkdir, "not-a-file"),
        (lambda path: path.write_text("no store" * 200), "damaged-store"),
        (damaged_store, "damaged-store"),
    ],
)
def test_a_store_that_is_something_else_is_refused(tmp_path: Path, make: Callable[[Path], object], code: str) -> None:
    make(tmp_path / "traces.db")
    with expect_error(ConfigError, code, "traces.db", "rllm.sdk.store.path"):
        check_sdk(own(tmp_path / "traces.db"))


def test_run_checks_the_store_that_it_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run learns of a damaged store before it samples."""
    damaged_store(tmp_path / "gateway" / "traces.db")

    class StartedError(Exception):
        pass

    def start(*_: Any) -> Any:
        raise StartedError

    monkeypatch.setattr("rllm_gateway.serving.opening.gateway_process", start)

    async def opened(replaces: bool) -> None:
        engine: Any = SimpleNamespace(renderer=None)
        run = OpenedRun(config=RunConfig(), engine=engine, directory=tmp_path, replaces=replaces)
        async with _open(run, AgentParams(command=["true"])):
            pass

    with pytest.raises(ConfigError, match="damaged"):
        asyncio.run(opened(replaces=False))
    with pytest.raises(StartedError):
        asyncio.run(opened(replaces=True))


def test_places_that_cannot_be_written_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with expect_error(ConfigError, "directory-not-found"):
        check_sdk(own(tmp_path / "file" / "traces.db"))
    # As root every file may be written.
    monkeypatch.setattr("rllm_gateway.serving.checks.os.access", lambda path, *_, **__: path != tmp_path)
    with expect_error(ConfigError, "not-writable", tmp_path):
        check_sdk(own(tmp_path / "traces.db"))


def test_other_hosts_and_taken_ports_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"rllm\.sdk\.proxy\.host"):
        check_sdk(own(tmp_path / "traces.db", host="192.0.2.1"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with expect_error(ConfigError, "port-unavailable", "rllm.sdk.proxy.port"):
            check_sdk(own(tmp_path / "traces.db", port=port))
        # The default may be taken.
        monkeypatch.setattr("rllm_gateway.serving.child.DEFAULT_PORT", port)
        check_sdk(own(tmp_path / "traces.db", port=port))
    assert ProxySection().port == DEFAULT_PORT


def test_check_leaves_the_gateway_free(tmp_path: Path) -> None:
    async def main() -> None:
        with CallStore.open(tmp_path / "calls.db") as store:
            run_socket = RunSocket(Gateway(store, "http://127.0.0.1:1"), "secret", lambda directory: renderer())
            async with await asyncio.start_server(run_socket.enter, "127.0.0.1", 0) as server:
                port = server.sockets[0].getsockname()[1]
                for _ in range(2):
                    await asyncio.to_thread(check_sdk, external(port))
                with expect_error(BackendError, "gateway-rejected-run", "token"):
                    await asyncio.to_thread(check_sdk, external(port, "wrong"))

    asyncio.run(main())


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"{}\n", b"[1]\n", b""])
def test_a_stranger_at_the_port_is_no_gateway(says: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(says)

        thread = threading.Thread(target=answer)
        thread.start()
        with expect_error(BackendError, "no-gateway"):
            check_sdk(external(server.getsockname()[1]))
        thread.join()


def test_without_gateway_or_token_no_run_attaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with expect_error(BackendError, "no-gateway", "rllm gateway serve"):
        check_sdk(external(free()))
    monkeypatch.setattr(admin_token, "TOKEN_FILE", tmp_path / "token")
    with expect_error(ConfigError, "missing-api-key"):
        check_sdk(external(free(), None))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("sdk", "code", "key"),
    [
        (SdkSection(proxy=ProxySection(admin_token="x")), "unused-key", "rllm.sdk.proxy.admin_token"),
        (
            SdkSection(store=StoreSection(path="x"), proxy=ProxySection(mode="external")),
            "unused-key",
            "rllm.sdk.store.path",
        ),
        (SdkSection(proxy=ProxySection(mode="external", port=65535)), "port-unavailable", "65535"),
    ],
)
def test_keys_of_a_different_mode_are_rejected(sdk: SdkSection, code: str, key: str) -> None:
    with expect_error(RllmError, code, key):
        check_sdk(sdk)
