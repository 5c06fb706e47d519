"""The transport without an event loop: the same answers and errors as the other one, against a real server."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from holdfast.api.errors import NotFound, NotUnderstood, Unreachable
from holdfast.client import Client
from holdfast.client.transport.blocking import BlockingSocket, BlockingTransport, run
from holdfast.testing.server import ServerProcess

T = TypeVar("T")


def ask(url: str, api_key: str | None, work: Callable[[Client], Awaitable[T]]) -> T:
    async def main() -> T:
        transport = BlockingTransport()
        async with Client(url, api_key=api_key, retry_seconds=0.0, transport=transport) as client:
            return await work(client)

    return run(main())


def test_threads_are_written_and_read(server: ServerProcess) -> None:
    async def work(client: Client) -> list[Any]:
        thread = await client.threads.create(title="Ünïcode")
        await thread.append([{"type": "chat", "text": "a"}, {"type": "chat", "text": "ß" * 300_000}])
        return [(await thread.info()).title, *[entry.payload["text"] async for entry in thread.entries(types="chat")]]

    assert ask(server.url, server.api_key, work) == ["Ünïcode", "a", "ß" * 300_000]


def test_refusals_are_the_same_errors(server: ServerProcess) -> None:
    with pytest.raises(NotFound) as refused:
        ask(server.url, server.api_key, lambda client: client.threads.get("t-none"))
    assert refused.value.status == 404


def test_what_waits_for_an_event_loop_is_refused() -> None:
    with pytest.raises(RuntimeError, match="event loop"):
        run(_wait())


async def _wait() -> None:
    await asyncio.sleep(0)


@contextmanager
def answering(*pieces: bytes) -> Iterator[str]:
    """A server that answers one request with these bytes, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                for piece in pieces:
                    connection.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def health(url: str) -> dict[str, Any]:
    return ask(url, None, lambda client: client.health())


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n", b'{"a', b'":1}'),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b'3;x=y\r\n{"a\r\n', b'4\r\n":1}\r\n0\r\n\r\n'),
        (b"HTTP/1.0 200 OK\r\n\r\n", b'{"a":1}'),
        (b"HTTP/1.1 200 O", b"K\r\nCONTENT-LENGTH:7\r\n\r", b'\n{"a":1}'),
    ],
)
def test_answers_are_read_however_they_are_delimited(pieces: tuple[bytes, ...]) -> None:
    with answering(*pieces) as url:
        assert health(url) == {"a": 1}


@pytest.mark.parametrize(
    ("pieces", "error", "why"),
    [
        ((), Unreachable, "connection was lost"),
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{}",), Unreachable, "connection was lost"),
        ((b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\n{}",), Unreachable, "connection was lost"),
        ((b"SSH-2.0-OpenSSH\r\n\r\n",), NotUnderstood, "SSH-2.0"),
    ],
)
def test_half_an_answer_is_none(pieces: tuple[bytes, ...], error: type[Exception], why: str) -> None:
    with answering(*pieces) as url, pytest.raises(error, match=why):
        health(url)


def test_a_server_that_is_not_there_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unreachable, match="connection refused"):
        health(f"http://127.0.0.1:{port}")


# --- WebSockets ---


@contextmanager
def pair(received: bytes = b"") -> Iterator[tuple[BlockingSocket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield BlockingSocket(ours, bytearray(received), "http://x", "WebSocket /x"), theirs


def test_messages_come_whole_whatever_pieces_they_come_in() -> None:
    frames = b"\x82\x03abc" + b"\x01\x02he" + b"\x89\x01p" + b"\x80\x03llo" + b"\x82\x7e\x01\x00" + b"x" * 256
    with pair(frames[:1]) as (ours, theirs):
        got: list[bytes | str] = []
        for number in range(1, len(frames)):
            theirs.sendall(frames[number : number + 1])
            while (message := ours.receive()) is not None:
                got.append(message)
        assert got == [b"abc", "hello", b"x" * 256]
        assert theirs.recv(100) == b"\x8a\x81\0\0\0\0p", "a ping is answered"


def test_much_is_sent_as_fast_as_the_other_side_takes_it() -> None:
    data = b"y" * 3_000_000
    with pair() as (ours, theirs):
        ours.send(data)
        assert not ours.is_sent
        got = bytearray()
        while len(got) < len(data) + 14:
            got += theirs.recv(1 << 20)
            if not ours.is_sent:
                ours.wait()
        assert got == b"\x82\xff" + len(data).to_bytes(8, "big") + b"\0\0\0\0" + data
        assert ours.is_sent


@pytest.mark.parametrize("goodbye", [b"\x88\x02\x03\xe8", b"\x82\xff" + (1 << 40).to_bytes(8, "big"), b""])
def test_a_socket_that_ends_is_unreachable(goodbye: bytes) -> None:
    with pair() as (ours, theirs):
        theirs.sendall(goodbye)
        theirs.close()
        with pytest.raises(Unreachable):
            ours.receive()
