"""A server of the S3 API: moto in its own process, and a forwarder that can refuse connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

PACKAGES = Path(sys.prefix, "object-store")
"""Directory with s3fs and moto. s3fs needs an older python-dateutil than the rest."""
BUCKET = "bucket"
_HEADERS = {"Authorization": "AWS4-HMAC-SHA256 Credential=key/20200101/us-east-1/s3/aws4_request, Signature=0"}
"""moto checks that a request is signed, and does not check the signature."""


class Forwarder:
    """A process that forwards connections from a free port to a port. Without it, connections are refused."""

    def __init__(self, target: int) -> None:
        self._target, self.port = str(target), free_port()
        self.open()

    def open(self) -> None:
        """Start the process."""
        self._process = subprocess.Popen([sys.executable, __file__, str(self.port), self._target])
        wait_for_port(self.port, self._process)

    def close(self) -> None:
        """End the process, and all connections."""
        self._process.kill()
        self._process.wait()


def free_port() -> int:
    """Return the number of a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def wait_for_port(port: int, process: subprocess.Popen[Any]) -> None:
    """Wait until a process accepts connections."""
    end = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)


async def _forward(port: int, target: int) -> None:
    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(connect, "127.0.0.1", port)
    await server.serve_forever()


class S3Server:
    """A running server with the bucket `bucket`."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self._forwarder = Forwarder(port)
        self._direct = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, headers=_HEADERS)
        self.url = f"s3://{BUCKET}/runs"

    def environment(self, cache: Path) -> dict[str, str]:
        """Return the environment variables of a program on a machine with this cache."""
        return os.environ | {
            "PYTHONPATH": str(PACKAGES),
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._forwarder.port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "RLLM_RUNS_CACHE": str(cache),
        }

    def read(self, name: str) -> bytes | None:
        """Return an object of the bucket. None if it does not exist."""
        answer = self._direct.get(f"/{BUCKET}/{name}")
        return None if answer.status_code == 404 else answer.raise_for_status().content

    def names(self) -> list[str]:
        """Return the names of all objects of the bucket, at most 1,000."""
        answer = self._direct.get(f"/{BUCKET}", params={"list-type": 2}).raise_for_status()
        return re.findall("<Key>([^<]*)</Key>", answer.text)

    def make_bucket(self) -> None:
        """Make the bucket."""
        self._direct.put(f"/{BUCKET}").raise_for_status()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Stop the server's process, so that it accepts connections and never answers."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuse connections, as if the server's process had ended."""
        self._forwarder.close()
        try:
            yield
        finally:
            self._forwarder.open()

    def close(self) -> None:
        """End the server."""
        self._forwarder.close()
        self._direct.close()
        self.process.kill()
        self.process.wait()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start a server with an empty bucket, and end it after the block."""
    port = free_port()
    code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(PACKAGES)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    wait_for_port(port, process)
    server = S3Server(process, port)
    try:
        server.make_bucket()
        yield server
    finally:
        server.close()


if __name__ == "__main__":
    asyncio.run(_forward(int(sys.argv[1]), int(sys.argv[2])))
