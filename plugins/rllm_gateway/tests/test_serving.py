"""`rllm gateway`: a gateway that outlives runs, and the content of its store."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from expecting import expect_error
from gateway_clients import openai_of
from gateway_world import DEADLINE, Scripted, renderer, running

from rllm_core.errors import BackendError, ConfigError
from rllm_gateway.call_listing import message_lines
from rllm_gateway.calls import CallStore
from rllm_gateway.command import gateway
from rllm_gateway.sampling.link_trainer import TrainerLink
from rllm_gateway.serving.attaching import RunSocket, admin_token, attach
from rllm_gateway.serving.gateway import Gateway, GatewayLimits
from rllm_gateway.sessions.link import SessionSpec

HI: Any = [{"role": "user", "content": "hi"}]
SPEC = SessionSpec(id="a:0", run="r", rollout="a", max_tokens=50)


def test_admin_token_is_made_once_and_private(tmp_path: Path) -> None:
    file = tmp_path / "new" / "token"
    token = admin_token(file)
    assert len(token) >= 40
    assert admin_token(file) == token
    assert file.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in file.parent.iterdir()] == ["token"]
    file.chmod(0o644)
    with pytest.raises(ConfigError):
        admin_token(file)
    file.chmod(0o600)
    file.write_text("")
    with pytest.raises(ConfigError):
        admin_token(file)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with expect_error(ConfigError, "file-unreadable"):
        admin_token(tmp_path / "pipe")


async def at_the_door(tmp_path: Path, steps: Any) -> None:
    """Run `steps` with a gateway without a policy, and the port where it takes runs."""
    store = CallStore.open(tmp_path / "calls.db")
    gateway = Gateway(store, "http://127.0.0.1:1", GatewayLimits(policy_seconds=0.01))
    run_socket = RunSocket(gateway, "secret", lambda directory: renderer())
    server = await asyncio.start_server(run_socket.enter, "127.0.0.1", 0)
    try:
        async with asyncio.timeout(DEADLINE):
            await steps(gateway, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await server.wait_closed()
        store.close()


def test_run_attaches_with_token_and_opens_sessions(tmp_path: Path) -> None:
    async def steps(gateway: Gateway, port: int) -> None:
        link = TrainerLink(*await attach("127.0.0.1", port, "secret", tmp_path, "tiny"))
        assert gateway.is_attached
        opened = await link.open_session(SPEC, Scripted())  # type: ignore[arg-type]  # nothing is sampled
        assert opened.url == "http://127.0.0.1:1/s/a:0"
        with expect_error(BackendError, "gateway-rejected-run", "a different run"):
            await attach("127.0.0.1", port, "secret", tmp_path, "tiny")
        with expect_error(BackendError, "gateway-rejected-run", "token"):
            await attach("127.0.0.1", port, "wrong", tmp_path, "tiny")
        await link.close()
        while gateway.is_attached or gateway.open_sessions:
            await asyncio.sleep(0.001)

    asyncio.run(at_the_door(tmp_path, steps))


@pytest.mark.parametrize("hello", [b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"{}\n", b"x" * 200_000 + b"\n", b""])
def test_what_is_no_run_is_turned_away(tmp_path: Path, hello: bytes) -> None:
    async def steps(gateway: Gateway, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(hello)
        writer.write_eof()
        try:
            said = await reader.read()
        except ConnectionError:
            said = b""
        assert b"attached" not in said.replace(b"a different run is attached", b"")
        assert not gateway.is_attached
        writer.close()

    asyncio.run(at_the_door(tmp_path, steps))


def test_serve_listens_until_it_is_stopped(tmp_path: Path) -> None:
    place = ["--store", str(tmp_path / "calls.db"), "--token-file", str(tmp_path / "token")]
    ports = ["--port", "0", "--run-port", "0", "--announce", str(tmp_path / "at.json")]
    program = [sys.executable, "-m", "rllm", "gateway", "serve", *place, *ports]
    with subprocess.Popen(program, text=True, stdout=subprocess.PIPE) as process:
        while not (tmp_path / "at.json").exists():
            assert process.poll() is None
            time.sleep(0.01)
        url = json.loads((tmp_path / "at.json").read_text())["url"]
        status = httpx.post(f"{url}/s/x/agent/v1/responses", json={}).status_code
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=DEADLINE)
    assert (status, process.returncode) == (401, 0)
    assert url.startswith("http://127.0.0.1:"), "nobody else's machine, unless --host says so"
    assert f"agents: {url}; runs: port " in printed
    assert (tmp_path / "token").read_text().strip() not in printed


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with a closed session of two calls, and an open session of a validation."""
    directory: Path = tmp_path_factory.mktemp("filled")
    with running(directory) as world:
        session = world.open(id="task:0")
        with openai_of(session) as client:
            first = client.chat.completions.create(model="m", messages=HI).choices[0].message
            said: Any = [*HI, first, {"role": "user", "content": "and"}]
            client.chat.completions.create(model="m", messages=said)
        world.run(world.gateway.add_reward(world.gateway.session("task:0", session.key), "agent", 0.5))
        world.close(session)
        world.open(id="other:0", label="val")
    return directory / "calls.db"


@pytest.fixture
def stored(filled: Path, tmp_path: Path) -> list[str]:
    """Return the option that names a copy of that store."""
    return ["--store", str(shutil.copy(filled, tmp_path / "calls.db"))]


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(gateway, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_sessions_are_listed(stored: list[str]) -> None:
    listed = printed("sessions", *stored)
    lines = {line.split()[0]: line for line in listed.splitlines()}
    assert lines["task:0"].startswith("task:0  run r  2 calls  closed  ")
    assert "0 calls  open" in lines["other:0"]
    assert lines["other:0"].endswith("  validation")
    assert printed("sessions", *stored, "--run", "r") == listed


def test_sessions_are_listed_as_json(stored: list[str]) -> None:
    listed = {each["id"]: each for each in json.loads(printed("sessions", *stored, "--json"))}
    assert (listed["task:0"]["run"], listed["task:0"]["calls"], listed["task:0"]["ending"]) == ("r", 2, "closed")
    assert listed["other:0"]["ending"] is None


@pytest.mark.parametrize(
    ("command", "code", "values"),
    [
        (["sessions", "--run", "other"], "run-not-found", ("'other'", "'r'")),
        (["show", "task:1"], "unknown-session", ("'task:1'", "`rllm gateway sessions`")),
        (["prune"], "nothing-selected", ()),
    ],
)
def test_unknown_selection_is_refused(stored: list[str], command: list[str], code: str, values: Any) -> None:
    with expect_error(ConfigError, code, *values):
        CliRunner().invoke(gateway, [*command, *stored], catch_exceptions=False)


@pytest.mark.parametrize("command", [["sessions"], ["show", "x"], ["prune", "--run", "r"]])
def test_where_no_store_is_none_is_made(command: list[str], tmp_path: Path) -> None:
    with expect_error(ConfigError, "store-not-found", "calls.db", "--store"):
        CliRunner().invoke(gateway, [*command, "--store", str(tmp_path / "calls.db")], catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_a_session_is_shown_call_by_call(stored: list[str]) -> None:
    shown = printed("show", *stored, "task:0").splitlines()
    assert shown == [
        "[0] agent: 8 new tokens, 6 sampled by weights 3, stop",
        "    user: hi",
        "    assistant: hello",
        "[1] agent, continues 0: 9 new tokens, 6 sampled by weights 3, stop",
        "    user: and",
        "    assistant: hello",
        "reward of agent: 0.5",
        "closed",
    ]


def test_reasoning_and_tool_calls_are_shown() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Hm?",
        "tool_calls": [{"id": "c", "function": {"name": "look_up", "arguments": '{"word": "proof"}'}}],
    }
    assert list(message_lines(message)) == [
        "    assistant thinks: Hm?",
        '    assistant calls look_up: {"word": "proof"}',
    ]
    assert list(message_lines({"role": "tool", "content": "x" * 3000})) == [f"    tool: {'x' * 2000}…"]
    assert list(message_lines({"role": "assistant", "content": None})) == ["    assistant: "]


def test_sessions_are_pruned(stored: list[str]) -> None:
    assert printed("prune", *stored, "--days", "1") == "0 sessions deleted\n"
    assert printed("prune", *stored, "--run", "r") == "2 sessions deleted\n"
    assert "no session" in printed("sessions", *stored)


def test_call_without_policy_waits_and_gets_retry_hint(tmp_path: Path) -> None:
    with running(tmp_path, GatewayLimits(policy_seconds=0.05), attached=None) as world:
        session = world.open()
        url, headers = f"{session.openai_url()}/responses", {"x-api-key": session.key}
        answer = httpx.post(url, json={"input": "hi"}, headers=headers)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["code"] == "no_policy"
