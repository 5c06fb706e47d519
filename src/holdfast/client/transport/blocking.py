"""A transport without an event loop: one request at a time on a plain socket, and WebSockets with one reader.

For programs that make one request and exit. Its methods are coroutines because the contract requires it, but they block
and never suspend; `run` runs them. It supports http only; use `asynchronous` for https.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlencode, urlsplit

from holdfast.api.errors import error_of
from holdfast.client.connection import Parameters, ServerConnection
from holdfast.client.transport import AnswerLost, NotHttp, NotSent, Reply, Transport
from holdfast.client.transport.websockets import MAX_MESSAGE, OPEN_SECONDS, unreachable, words_of

T = TypeVar("T")

_PIECE: Final = 1 << 16
_MAX_HEAD: Final = 1 << 16
_CLOSE_SECONDS: Final = 5.0

_TEXT: Final = 1
_BINARY: Final = 2
_CLOSE: Final = 8
_PING: Final = 9


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that uses only this transport. Raises what it raises."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("this coroutine waits for an event loop, but none is running")


class BlockingTransport(Transport):
    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        timeout: float,
        connect_timeout: float,
    ) -> Reply:
        with _connect(url, connect_timeout) as opened:
            opened.settimeout(timeout)
            size = {} if body is None and method == "GET" else {"content-length": str(len(body or b""))}
            try:
                opened.sendall(_head(method, url, {**headers, **size, "connection": "close"}) + (body or b""))
                return _read_reply(opened)
            except OSError as error:
                raise AnswerLost(_reason(error)) from error

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - nothing else could run meanwhile

    async def aclose(self) -> None:
        return None


def _connect(url: str, timeout: float) -> socket.socket:
    parsed = urlsplit(url)
    host: Any = parsed.hostname or ""
    if host.isascii():
        host = host.encode()  # bytes skip the IDNA tables, which take long to load
    try:
        opened = socket.create_connection((host, parsed.port or 80), timeout)
    except OSError as error:
        raise NotSent(_reason(error)) from error
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    # Error numbers of name resolution are not from the system.
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)


def _head(method: str, url: str, headers: Mapping[str, str]) -> bytes:
    parsed = urlsplit(url)
    target = (parsed.path or "/") + (f"?{parsed.query}" if parsed.query else "")
    lines = [f"{method} {target} HTTP/1.1", f"host: {parsed.netloc.rpartition('@')[2]}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _read_reply(opened: socket.socket) -> Reply:
    status, headers, body = _read_head(opened)
    length = headers.get("content-length")
    while length is None or len(body) < int(length):
        piece = opened.recv(_PIECE)
        if not piece:
            if length is not None:
                raise AnswerLost("the connection was lost")
            break
        body += piece
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = _dechunked(body)
    return Reply(status, headers, bytes(body))


def _read_head(opened: socket.socket) -> tuple[int, dict[str, str], bytearray]:
    """Returns the status, the headers with lower-case names, and the part of the body received so far."""
    data = bytearray()
    while b"\r\n\r\n" not in data:
        piece = opened.recv(_PIECE)
        if not piece:
            raise AnswerLost("the connection was lost")
        data += piece
        if len(data) > _MAX_HEAD + _PIECE:
            raise NotHttp("the response headers are too long")
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if not words[0].startswith("HTTP/1.") or len(words) < 2 or not words[1].isdecimal():
        raise NotHttp(f"the response begins with {first[:80]!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(words[1]), headers, body


def _dechunked(data: bytearray) -> bytearray:
    body, start = bytearray(), 0
    while True:
        end = data.find(b"\r\n", start)
        try:
            size = int(bytes(data[start:end]).partition(b";")[0], 16)
        except ValueError:
            raise NotHttp("a chunk of the response cannot be read") from None
        if end < 0 or len(data) < end + 2 + size:
            raise AnswerLost("the connection was lost")
        if size == 0:
            return body
        body += data[end + 2 : end + 2 + size]
        start = end + 2 + size + 2


# --- WebSockets ---


async def open_socket_once(connection: ServerConnection, path: str, parameters: Parameters = ()) -> BlockingSocket:
    """Open a WebSocket, without retries. The caller closes it."""
    asked = words_of(path)
    query = f"?{urlencode(list(parameters))}" if parameters else ""
    upgrade = {
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-version": "13",
        "sec-websocket-key": "aG9sZGZhc3QgYmxvY2tpbg==",  # the key protects against caches, and a plain socket has none
    }
    try:
        opened = _connect(connection.url, OPEN_SECONDS)
        try:
            opened.settimeout(OPEN_SECONDS)
            opened.sendall(_head("GET", f"{connection.url}{path}{query}", {**upgrade, **connection.credential_header}))
            status, headers, rest = _read_head(opened)
            if status == 101:
                return BlockingSocket(opened, rest, connection.url, asked)
            while len(rest) < int(headers.get("content-length", "0")) and (piece := opened.recv(_PIECE)):
                rest += piece
            raise error_of(status, headers, bytes(rest), asked)
        except BaseException:
            opened.close()
            raise
    except (OSError, NotSent, AnswerLost, NotHttp) as error:
        raise unreachable(connection.url, asked, error) from error


class BlockingSocket:
    """A non-blocking WebSocket for one reader that alternates between reading and writing."""

    def __init__(self, opened: socket.socket, received: bytearray, url: str, asked: str) -> None:
        opened.setblocking(False)
        self._opened = opened
        self._received = received
        self._unsent = bytearray()
        self._message = bytearray()
        self._kind = 0
        self._closed = False
        self._url = url
        self.asked = asked

    @property
    def is_sent(self) -> bool:
        """Whether everything has been sent. A caller that sends a lot waits for this, and reads meanwhile."""
        return not self._unsent

    def send(self, data: bytes | str) -> None:
        """Send as much of a message as the connection accepts now. `wait` sends the rest."""
        self._frame(*((_TEXT, data.encode()) if isinstance(data, str) else (_BINARY, data)))
        self._flush()

    def receive(self) -> bytes | str | None:
        """Returns the next message, or None if there is none yet. Raises `Unreachable` if the connection is closed."""
        while True:
            message = self._take()
            if message is not None or self._closed:
                break
            try:
                piece = self._opened.recv(_PIECE)
            except BlockingIOError:
                return None
            except OSError as error:
                raise unreachable(self._url, self.asked, error) from error
            self._closed = not piece
            self._received += piece
        if message is None:
            raise unreachable(self._url, self.asked, ConnectionError("the connection was lost"))
        return message

    def wait(self, *readable: int) -> set[int]:
        """Wait until the socket can receive or send, or a descriptor is readable. Returns the readable descriptors."""
        poll = select.poll()
        poll.register(self._opened, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        for descriptor in readable:
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        self._flush()
        return ready & set(readable)

    def close(self) -> None:
        """Close the connection cleanly. Messages that were sent but not yet received may be lost."""
        try:
            self._frame(_CLOSE, b"\x03\xe8")
            self._opened.settimeout(_CLOSE_SECONDS)
            self._opened.sendall(self._unsent)
            self._opened.shutdown(socket.SHUT_WR)
            while self._opened.recv(_PIECE):
                pass
        except OSError:
            pass  # the other side closed first
        finally:
            self._opened.close()

    def _frame(self, kind: int, data: bytes) -> None:
        """Queue a message as one frame. Its mask is zero: masks protect proxies from browsers, and neither is involved
        here.
        """
        size = len(data)
        if size < 126:
            head = bytes((0x80 | kind, 0x80 | size))
        elif size < 1 << 16:
            head = bytes((0x80 | kind, 0x80 | 126)) + size.to_bytes(2, "big")
        else:
            head = bytes((0x80 | kind, 0x80 | 127)) + size.to_bytes(8, "big")
        self._unsent += head + b"\0\0\0\0" + data

    def _flush(self) -> None:
        while self._unsent:
            try:
                sent = self._opened.send(self._unsent)
            except BlockingIOError:
                return
            except OSError:  # the other side closed; what it sent before can still be read
                self._unsent.clear()
                return
            del self._unsent[:sent]

    def _take(self) -> bytes | str | None:
        """Returns the next complete message in the received bytes."""
        while (frame := self._take_frame()) is not None:
            final, kind, data = frame
            if kind == _CLOSE:
                self._closed = True
                return None
            if kind == _PING:
                self._frame(_PING + 1, data)
                self._flush()
            if kind > _BINARY:
                continue
            self._kind = kind or self._kind
            self._message += data
            if final:
                message, self._message = self._message, bytearray()
                return message.decode() if self._kind == _TEXT else bytes(message)
        return None

    def _take_frame(self) -> tuple[bool, int, bytes] | None:
        data = self._received
        if len(data) < 2:
            return None
        size, start = data[1] & 0x7F, 2
        if size >= 126:
            start = 4 if size == 126 else 10
            size = int.from_bytes(data[2:start], "big")
        if size > MAX_MESSAGE:
            raise unreachable(self._url, self.asked, ConnectionError(f"a message of {size} bytes is too large"))
        if len(data) < start + size:
            return None
        frame = bool(data[0] & 0x80), data[0] & 0x0F, bytes(data[start : start + size])
        del data[: start + size]
        return frame
