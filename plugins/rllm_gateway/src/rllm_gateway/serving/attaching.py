"""Attach a run to a gateway that outlives it, with the admin token. The run opens the connection, never the gateway.

The token is in a file that only its owner can read. It is never passed on a command line.

The run sends one line of JSON first. The gateway answers with one line that reports if the run is attached. After
that, both send frames of the link.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rllm_core.contracts.renderer import Renderer
from rllm_core.errors import BackendError, ConfigError, RllmError
from rllm_core.files import open_to_read
from rllm_core.notices import one_line
from rllm_gateway.serving.gateway import Gateway, SessionError
from rllm_gateway.sessions.link import AttachedPolicy, LinkPolicy, OpenedSession, SessionSpec, SessionTrace

TOKEN_FILE = Path("~/.rllm/gateway.token")
PRIVATE = 0o600


def admin_token(file: Path = TOKEN_FILE) -> str:
    """Return the token in a file. If the file does not exist, create it with a new token.

    Raises:
        ConfigError: the file cannot be read or created, is empty, or can be read by other users.
    """
    path = file.expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make(path)
        with open_to_read(path) as opened:
            mode = os.fstat(opened.fileno()).st_mode & 0o777
            token = opened.read().decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "file-unreadable",
            f"The admin token in {path} cannot be read: {error}.",
            "Correct the file's permissions, or use a different file with --token-file.",
        ) from error
    if mode & 0o077:
        raise ConfigError(
            "bad-admin-token", f"Other users may read the admin token in {path}.", f"Run: chmod 600 {path}"
        )
    if not token:
        raise ConfigError(
            "bad-admin-token",
            f"The file of the admin token, {path}, is empty.",
            f"Run: rm {path}. rllm then creates it with a new token.",
        )
    return token


def is_token(given: object, token: str) -> bool:
    """Compare two tokens in constant time. True if they are equal."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="replace"), token.encode())


def _make(path: Path) -> None:
    """Create the file with a new token.

    The token is written to a temporary file first, and then linked. So no process reads half a token, and if two
    processes create the file at the same time, one of them wins.
    """
    if path.exists():
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(secrets.token_urlsafe(32) + "\n")
        os.link(temporary, path)
    except FileExistsError:
        return
    finally:
        temporary.unlink()


SECONDS_TO_SAY_HELLO = 10.0
SECONDS_TO_ATTACH = 120.0
"""The gateway needs this time to load the run's tokenizer."""


async def attach(
    host: str, port: int, token: str, renderer: Path, model: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect a run to a gateway, and return the run's end of the link.

    Args:
        host: host of the gateway.
        port: the gateway's port for runs.
        token: the gateway's admin token.
        renderer: directory with the run's renderer. The gateway must be able to read it.
        model: name of the model for clients.

    Raises:
        BackendError: no gateway runs there, or it rejects the run.
    """
    try:
        reader, writer = await asyncio.open_connection(host, port)
        hello = {"token": token, "renderer": str(renderer), "model": model}
        writer.write(json.dumps(hello).encode() + b"\n")
        async with asyncio.timeout(SECONDS_TO_ATTACH):
            answer = json.loads(await reader.readline() or "{}")
    except (OSError, ValueError) as error:
        raise BackendError(
            "no-gateway", f"No gateway accepts runs at {host}:{port}: {error}.", "Start one with: rllm gateway serve"
        ) from error
    if not answer.get("attached"):
        writer.close()
        raise BackendError(
            "gateway-rejected-run",
            f"The gateway at {host}:{port} rejected the run: {answer.get('refused', 'it closed the connection')}",
            "Check `rllm.sdk.proxy`. List the sessions that the gateway serves with `rllm gateway sessions`.",
        )
    return reader, writer


class RunSessions:
    """The sessions of the attached run."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._open: set[str] = set()

    async def open_session(self, spec: SessionSpec) -> OpenedSession:
        opened = await self._gateway.open_session(spec)
        self._open.add(spec.id)
        return opened

    async def close_session(self, session: str) -> SessionTrace:
        if session not in self._open:
            raise SessionError(
                "unknown-session",
                f"This run has no open session {session!r:.80}.",
                "A session is open only while its rollout runs. This is a bug; please report it.",
            )
        self._open.remove(session)
        return await self._gateway.close_session(session)

    async def close_all(self) -> None:
        """Close all sessions of a run that has disconnected."""
        for session in sorted(self._open):
            await self.close_session(session)


class RunSocket:
    """Accepts connections of runs. Only one run can be attached at a time."""

    def __init__(self, gateway: Gateway, token: str, load: Callable[[Path], Renderer]) -> None:
        """`load` reads a renderer from its directory."""
        self._gateway = gateway
        self._token = token
        self._load = load
        self._taken = False

    async def enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until it ends."""
        try:
            refusal = await self._serve_run(reader, writer)
            if refusal:
                writer.write(json.dumps({"refused": refusal}).encode() + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            # The client sent no first line in time, or hung up, so there is no one to answer.
            return
        finally:
            writer.close()

    async def _serve_run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Serve a run until it disconnects, or answer a `probe`.

        Returns:
            The reason if the run is rejected, else an empty string.
        """
        async with asyncio.timeout(SECONDS_TO_SAY_HELLO):
            hello = _object(await reader.readuntil(b"\n"))
        if not is_token(hello.get("token"), self._token):
            return "the admin token is wrong"
        if self._taken:
            return "a different run is attached"
        if hello.get("probe"):
            writer.write(b'{"free": true}\n')
            await writer.drain()
            return ""
        self._taken = True
        try:
            try:
                renderer = await asyncio.to_thread(self._load, Path(str(hello.get("renderer"))))
            except (RllmError, OSError) as error:
                return f"its renderer cannot be loaded: {one_line(str(error))}"
            await self._serve(reader, writer, renderer, str(hello.get("model")))
            return ""
        finally:
            self._taken = False

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, renderer: Renderer, model: str
    ) -> None:
        sessions = RunSessions(self._gateway)
        policy = LinkPolicy(reader, writer, sessions)
        self._gateway.attach(AttachedPolicy(policy=policy, renderer=renderer, model=model))
        writer.write(b'{"attached": true}\n')
        try:
            await policy.serve()
        finally:
            self._gateway.detach()
            await sessions.close_all()


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


SECONDS_TO_ANSWER = 10.0
LONGEST_ANSWER = 1 << 16


def probe(host: str, port: int, token: str) -> None:
    """Check that a gateway would attach a run now. Waits for some seconds at most.

    Raises:
        BackendError: no gateway runs there, or it would reject the run.
    """
    where = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), SECONDS_TO_ANSWER) as connection:
            connection.sendall(json.dumps({"token": token, "probe": True}).encode() + b"\n")
            with connection.makefile("rb") as hello:
                answer = json.loads(hello.readline(LONGEST_ANSWER))
    except OSError as error:
        raise BackendError(
            "no-gateway", f"No gateway accepts runs at {where}: {error}.", "Start one with: rllm gateway serve"
        ) from error
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or answer.keys().isdisjoint(("free", "refused")):
        raise BackendError(
            "no-gateway",
            f"The program that listens at {where} is not a gateway.",
            "Start a gateway with `rllm gateway serve`. Runs attach at rllm.sdk.proxy.port + 1.",
        )
    if "refused" in answer:
        raise BackendError("gateway-rejected-run", f"The gateway at {where} rejected the run: {answer['refused']}.")
