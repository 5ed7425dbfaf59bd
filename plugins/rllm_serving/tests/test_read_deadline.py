"""Requests that stop in the middle, on real sockets."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from .conftest import DEADLINE, Address, Serve, count_bytes

WHOLE = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"


def connect_client(address: Address) -> socket.socket:
    return socket.create_connection(address, timeout=DEADLINE)


def answer(connection: socket.socket, end: bytes = b"3") -> bytes:
    received = b""
    while not received.endswith(b"\r\n\r\n" + end):
        received += connection.recv(1000) or pytest.fail(f"closed after {received!r}")
    return received


def is_cut(connection: socket.socket) -> bool:
    """Waits until the server hangs up."""
    try:
        return connection.recv(1000) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", [b"", WHOLE[:1], WHOLE[:20], WHOLE[:-1]])
def test_incomplete_request_is_disconnected_at_the_deadline(serve: Serve, sent: bytes) -> None:
    with connect_client(serve(read_seconds=0.2)) as connection:
        connection.sendall(sent)
        assert is_cut(connection)


def test_a_request_that_drips_is_cut(serve: Serve) -> None:
    """The deadline is that of the whole request."""
    with connect_client(serve(read_seconds=0.3)) as connection, pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        connection.settimeout(0.05)
        while True:
            connection.sendall(b"x")
            try:
                if connection.recv(1) == b"":
                    raise ConnectionResetError("reset")
            except TimeoutError:
                continue


def test_later_requests_have_the_same_deadline(serve: Serve) -> None:
    with connect_client(serve(read_seconds=0.3)) as connection:
        for _ in range(2):
            connection.sendall(WHOLE)
            assert answer(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(WHOLE[:-1])
        assert is_cut(connection)


def test_an_answer_may_take_longer_than_the_request(serve: Serve) -> None:
    async def slow(scope: object, receive: object, send: object) -> None:
        await asyncio.sleep(0.5)
        await count_bytes(scope, receive, send)

    with connect_client(serve(slow, read_seconds=0.2)) as connection:
        connection.sendall(WHOLE)
        assert answer(connection).startswith(b"HTTP/1.1 200")


ENDLESS = [b"POST /" + b"x" * 200_000, b"POST / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 200_000]


@pytest.mark.parametrize("head", ENDLESS, ids=["path", "header"])
def test_a_head_without_an_end_is_cut(serve: Serve, head: bytes) -> None:
    with connect_client(serve(read_seconds=DEADLINE)) as connection:
        with suppress(ConnectionError):
            connection.sendall(head)
        assert is_cut(connection)


CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
BEHIND_A_BODY = {
    "trailers": (CHUNKED + b"0\r\n", b"X: y\r\n" * 1000),
    "trailer": (CHUNKED + b"0\r\nX: ", b"y" * 1000),
    "chunk extension": (CHUNKED + b"1;", b"y" * 1000),
}


@pytest.mark.parametrize(("begin", "more"), BEHIND_A_BODY.values(), ids=BEHIND_A_BODY)
def test_endless_data_after_a_body_is_disconnected(serve: Serve, begin: bytes, more: bytes) -> None:
    with connect_client(serve(read_seconds=DEADLINE)) as connection:
        connection.sendall(begin)
        with pytest.raises(ConnectionError):
            for _ in range(20_000):
                connection.sendall(more)


def test_a_body_of_many_chunks_arrives(serve: Serve) -> None:
    with connect_client(serve(read_seconds=DEADLINE)) as connection:
        connection.sendall(CHUNKED + b"1\r\nx\r\n" * 50_000 + b"0\r\nX: y\r\n\r\n")
        assert answer(connection, b"50001").startswith(b"HTTP/1.1 200")


def test_long_body_arrives_before_a_second_request(serve: Serve) -> None:
    body = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000
    with connect_client(serve(read_seconds=DEADLINE)) as connection:
        for sent, end in ((body, b"300000"), (WHOLE, b"3"), (body, b"300000")):
            connection.sendall(sent)
            assert answer(connection, end).startswith(b"HTTP/1.1 200")
