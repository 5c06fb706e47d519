"""HTTP to the server through the box's egress, or to a URL outside: one connection, one request at a time.

Supports only the part of HTTP/1.1 that the server uses with a runner. It does not interpret responses and does not
retry, except on a kept connection that the other side closed before it saw the request.
"""

from __future__ import annotations

import _socket
import errno

from holdfast.guest.runner.event_loop import READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.guest.runner.dialer import TlsConnection
    from holdfast.guest.runner.event_loop import Loop, Timer

_PIECE = 65536
_MAX_HEAD = 32 << 10
_MAX_BODY = 1 << 20
_SECONDS = 30.0
"""Seconds without a byte in either direction before a request is given up."""


class Answer:
    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class Trouble(Exception):
    """The data from the other side is not a valid response."""


class HttpClient:
    """Owns its connection, which does not block. `token` is called for every request."""

    def __init__(self, loop: Loop, url: str, token: Callable[[], str], seconds: float = _SECONDS) -> None:
        self._scheme, _, rest = url.partition("://")
        authority, slash, path = rest.partition("/")
        host, colon, port = authority.rpartition(":")
        if not colon or port.endswith("]"):
            host, port = authority, ""
        self.host = host.strip("[]")
        if self._scheme not in ("http", "https") or not self.host:
            raise ValueError("the server's URL must look like http://127.0.0.1:3128, not %r" % url)
        self.port = int(port or (80 if self._scheme == "http" else 443))
        self._authority = authority
        self._prefix = (slash + path).rstrip("/")
        self._attempt = 0
        """The number of the latest connection that was dialled outside."""
        self.problem = ""
        """Why the last request got no response."""
        self._loop = loop
        self._token = token
        self._seconds = seconds
        self._socket: _socket.socket | TlsConnection | None = None
        self._used = False
        """Whether the connection has carried an earlier request."""
        self._then: Callable[[Answer | None], None] | None = None
        self._request = b""
        self._left = memoryview(b"")
        self._received = bytearray()
        self._timer: Timer | None = None
        self._progress = 0.0

    @property
    def busy(self) -> bool:
        return self._then is not None

    def post(self, path: str, headers: str, body: bytes, then: Callable[[Answer | None], None]) -> None:
        """Send a request. `then` gets the response, or None if there is none; `problem` tells why."""
        head = "POST %s%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n" % (
            self._prefix, path, self._authority, self._token(),
        )  # fmt: skip
        head += "Content-Type: application/json\r\nContent-Length: %d\r\n%s\r\n" % (len(body), headers)
        self._request = head.encode("latin-1", "replace") + body
        self._then = then
        self._progress = self._loop.clock()
        if self._timer is None:
            self._timer = self._loop.after(self._seconds, self._look_at_the_clock)
        self._send()

    def close(self) -> None:
        """Close the connection. A request in progress gets no response."""
        self._then = None
        self._loop.cancel(self._timer)
        self._timer = None
        self._hang_up()

    def _hang_up(self) -> None:
        self._attempt += 1
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None

    # --- one request ---

    def _send(self) -> None:
        self._left = memoryview(self._request)
        self._received = bytearray()
        try:
            if self._socket is None:
                self._connect()
            else:
                self._write()
        except OSError as error:
            self._failed(error.strerror or "the connection failed")

    def _connect(self) -> None:
        self._used = False
        address = "127.0.0.1" if self.host == "localhost" else self.host
        if self._scheme != "http" or address.strip("0123456789."):
            self._dial()
            return
        kind = _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK
        connection = self._socket = _socket.socket(_socket.AF_INET, kind)
        connection.settimeout(0.0)
        connection.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        number = connection.connect_ex((address, self.port))
        if number not in (0, errno.EINPROGRESS):
            raise OSError(number, "connecting failed")
        self._loop.watch(connection.fileno(), READ | WRITE, self._on_event)

    def _dial(self) -> None:
        """Connect to a server outside of the box."""
        from holdfast.guest.runner.dialer import dial  # only here: it needs much that a box does not need otherwise

        self._attempt += 1
        attempt = self._attempt

        def done(connection: _socket.socket | TlsConnection | None, why: str) -> None:
            if attempt != self._attempt:  # given up meanwhile
                if connection is not None:
                    connection.close()
            elif connection is None:
                self._failed(why)
            else:
                self._socket = connection
                self._progress = self._loop.clock()
                self._loop.watch(connection.fileno(), READ | WRITE, self._on_event)

        dial(self._loop, self._scheme, self.host, self.port, done)

    def _on_event(self, events: int) -> None:
        try:
            if self._left and events & ~READ:
                self._write()
            if events & ~WRITE:
                self._read()
        except BlockingIOError:
            pass
        except OSError as error:
            self._failed(error.strerror or "the connection failed")
        except Trouble as trouble:
            self._used = False
            self._failed(str(trouble))

    def _write(self) -> None:
        if self._socket is None:
            return
        try:
            while self._left:
                self._left = self._left[self._socket.send(self._left) :]
                self._progress = self._loop.clock()
        except BlockingIOError:
            self._loop.watch(self._socket.fileno(), READ | WRITE, self._on_event)
            return
        self._loop.watch(self._socket.fileno(), READ, self._on_event)

    def _read(self) -> None:
        if self._socket is None:
            return
        data = self._socket.recv(_PIECE)
        if self._then is None:
            self._hang_up()  # nothing was requested, so it closes or is misbehaving
            return
        if not data:
            self._failed("the server closed the connection")
            return
        self._received += data
        self._progress = self._loop.clock()
        answer = self._parse()
        while answer is not None and answer.status < 200:  # "Continue" and the like
            answer = self._parse()
        if answer is not None:
            if answer.headers.get(b"connection", b"").lower() == b"close":
                self._hang_up()
            self._used = True
            self._finish(answer)

    def _parse(self) -> Answer | None:
        """Returns the response if it is complete, and removes it from the received bytes."""
        received = self._received
        end = received.find(b"\r\n\r\n")
        if end < 0:
            if len(received) > _MAX_HEAD:
                raise Trouble("the answer's head is too long")
            return None
        lines = bytes(received[:end]).split(b"\r\n")
        first = lines[0].split(None, 2)
        if len(first) < 2 or not first[0].startswith(b"HTTP/1.") or not first[1].isdigit():
            raise Trouble("the answer is not HTTP")
        status = int(first[1])
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        start = end + 4
        if status < 200 or status in (204, 304):
            body: bytes | None = b""
            after = start
        elif b"chunked" in headers.get(b"transfer-encoding", b"").lower():
            body, after = _unchunk(received, start)
        else:
            length = headers.get(b"content-length", b"")
            if not length.isdigit() or len(length) > 9 or int(length) > _MAX_BODY:
                raise Trouble("the answer has no length, or is too long")
            after = start + int(length)
            body = bytes(received[start:after]) if len(received) >= after else None
        if body is None:
            return None
        del received[:after]
        return Answer(status, headers, body)

    def _look_at_the_clock(self) -> None:
        self._timer = None
        if self._then is None:
            return
        left = self._progress + self._seconds - self._loop.clock()
        if left <= 0:
            self._used = False
            self._failed("no answer in %d s" % self._seconds)
        else:
            self._timer = self._loop.after(left, self._look_at_the_clock)

    def _failed(self, why: str) -> None:
        again = self._used and not self._received
        self._hang_up()
        if self._then is None:
            return
        if again:
            self._send()
        else:
            self.problem = why
            self._finish(None)

    def _finish(self, answer: Answer | None) -> None:
        then, self._then = self._then, None
        self._request = b""
        if then is not None:
            then(answer)


def _unchunk(received: bytearray, start: int) -> tuple[bytes | None, int]:
    """Returns the body of a chunked response and its end, or None while it is incomplete."""
    body = bytearray()
    while True:
        end = received.find(b"\r\n", start)
        if end < 0:
            if len(received) - start > 64:
                raise Trouble("a chunk of the answer has no size")
            return None, 0
        size = bytes(received[start:end]).partition(b";")[0].strip()
        try:
            length = int(size, 16)
        except ValueError:
            raise Trouble("a chunk of the answer has no size") from None
        if not 0 <= length <= _MAX_BODY - len(body):
            raise Trouble("the answer is too long")
        start = end + 2
        if len(received) < start + length + 2:
            return None, 0
        body += received[start : start + length]
        start += length + 2
        if length == 0:
            return bytes(body), start
