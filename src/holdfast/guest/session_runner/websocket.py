"""A WebSocket client (RFC 6455), as far as a runner and its hub need it: text messages, pings, closing. No extensions.

One thread uses it. The server is ours, but the bytes may be anything: what is not allowed ends the connection.
"""

from __future__ import annotations

import binascii
import os
import select
import struct
from hashlib import sha1

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Connection(Protocol):
        """A connection that does not block: `holdfast.guest.runner.dialer`."""

        def fileno(self) -> int: ...

        def recv(self, size: int, /) -> bytes: ...

        def send(self, data: memoryview, /) -> int: ...

        def close(self) -> None: ...


TEXT = 1
CLOSE = 8
PING = 9
PONG = 10
NORMAL = 1000
_KINDS = frozenset((0, TEXT, CLOSE, PING, PONG))
_PROTOCOL_ERROR = 1002
_NOT_TEXT = 1007
_TOO_LARGE = 1009
_KEY = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MAX_HEAD = 16 << 10
_MAX_CONTROL = 125


class Refused(OSError):
    """The server answers the handshake with something else than a WebSocket. `status` is that of HTTP, or 0."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Closed(OSError):
    """The connection has ended. `code` is 1006 if the other side did not say why."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__("%d %s" % (code, reason))
        self.code = code
        self.reason = reason


class WebSocket:
    """Owns the connection once it is created. `handshake` comes first."""

    def __init__(self, connection: Connection, max_message: int, seconds: float = 30.0) -> None:
        """`seconds` without a byte end a handshake, or an attempt to send."""
        self._connection = connection
        self._max_message = max_message
        self._seconds = seconds
        self._received = bytearray()
        self._pieces = bytearray()
        self._begun = False
        self._closing = False
        self.came_along = False
        """Whether the answer to the handshake had more behind it, which no poll tells: `receive` returns it."""
        self._end: OSError | None = None
        """What ended the connection after messages that are still to be returned."""

    def fileno(self) -> int:
        return self._connection.fileno()

    def handshake(self, host: str, path: str, token: str) -> None:
        """Raises `Refused`, or another OSError."""
        key = binascii.b2a_base64(os.urandom(16), newline=False)
        head = "GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n" % (path, host, token)
        head += "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        self._write(head.encode("latin-1") + b"Sec-WebSocket-Key: " + key + b"\r\n\r\n")
        while b"\r\n\r\n" not in self._received:
            if len(self._received) > _MAX_HEAD:
                raise Refused(0, "the answer to the handshake is too long")
            self._wait(select.POLLIN)
            self._fill()
        answer, _, rest = bytes(self._received).partition(b"\r\n\r\n")
        self._received = bytearray(rest)
        self.came_along = bool(rest)
        lines = answer.split(b"\r\n")
        words = lines[0].split(b" ", 2)
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() and len(words[1]) == 3 else 0
        if status != 101:
            raise Refused(status, "the server answers the handshake with %d" % status)
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        if headers.get(b"sec-websocket-accept") != binascii.b2a_base64(sha1(key + _KEY).digest(), newline=False):
            raise Refused(0, "the server does not speak WebSocket")

    # --- sending ---

    def send(self, text: str) -> None:
        """Send a message. Raises `Closed` if the server has said goodbye, and another OSError if it is just gone."""
        try:
            self._send(TEXT, text.encode())
        except OSError:
            try:
                while self.receive():
                    pass  # what comes before a goodbye is lost, and is sent again on the next connection
            except Closed:
                raise
            except OSError:
                pass
            raise

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Say goodbye, as far as that goes, and end the connection."""
        if not self._closing:
            self._closing = True
            try:
                self._send(CLOSE, struct.pack("!H", code) + reason.encode()[: _MAX_CONTROL - 2])
            except OSError:
                pass
        self._connection.close()

    def _send(self, kind: int, data: bytes) -> None:
        size = len(data)
        if size <= _MAX_CONTROL:
            head = struct.pack("!BB", 0x80 | kind, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", 0x80 | kind, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", 0x80 | kind, 0x80 | 127, size)
        mask = os.urandom(4)
        self._write(head + mask + masked(data, mask))

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._connection.send(left) :]
            except BlockingIOError:
                self._wait(select.POLLOUT)

    def _wait(self, event: int) -> None:
        waiting = select.poll()
        waiting.register(self._connection.fileno(), event)
        if not waiting.poll(self._seconds * 1000):
            raise OSError("the server did not answer within %g s" % self._seconds)

    # --- receiving ---

    def receive(self) -> list[str]:
        """Returns the messages that have arrived. Raises `Closed`, or another OSError, after the last of them."""
        self.raise_end()
        self.came_along = False
        messages: list[str] = []
        try:
            try:
                self._fill()
            finally:
                self._read(messages)  # also what came before the connection was lost: a goodbye says more than its loss
        except OSError as end:
            if not messages:
                raise
            self._end = end
        return messages

    def raise_end(self) -> None:
        """Raise what ended the connection after the messages that were returned, if anything did."""
        if self._end is not None:
            raise self._end

    def _read(self, messages: list[str]) -> None:
        while True:
            frame = self._frame()
            if frame is None:
                return
            final, kind, data = frame
            if kind >= CLOSE:
                self._control(kind, data)
                continue
            self._pieces += data
            self._begun = not final
            if final:
                try:
                    messages.append(self._pieces.decode())
                except UnicodeDecodeError:
                    raise self._fail(_NOT_TEXT, "a message is not UTF-8") from None
                self._pieces = bytearray()

    def _frame(self) -> tuple[bool, int, bytes] | None:
        """Takes the next frame from what has arrived, or returns None if it is not whole yet."""
        buffer = self._received
        if len(buffer) < 2:
            return None
        final, kind, size, start = bool(buffer[0] & 0x80), buffer[0] & 0x0F, buffer[1] & 0x7F, 2
        if buffer[0] & 0x70 or buffer[1] & 0x80 or kind not in _KINDS:
            raise self._fail(_PROTOCOL_ERROR, "a frame is not allowed")
        if kind >= CLOSE and (size > _MAX_CONTROL or not final):
            raise self._fail(_PROTOCOL_ERROR, "a control frame is not allowed")
        if kind < CLOSE and (kind == 0) is not self._begun:
            raise self._fail(_PROTOCOL_ERROR, "a frame is out of order")
        if size > _MAX_CONTROL:
            width = 2 if size == 126 else 8
            start += width
            if len(buffer) < start:
                return None
            size = int.from_bytes(buffer[2:start], "big")
        if kind < CLOSE and len(self._pieces) + size > self._max_message:
            raise self._fail(_TOO_LARGE, "a message is too large")
        if len(buffer) < start + size:
            return None
        data = bytes(buffer[start : start + size])
        del buffer[: start + size]
        return final, kind, data

    def _control(self, kind: int, data: bytes) -> None:
        if kind == PING:
            self._send(PONG, data)
        elif kind == CLOSE:
            code = int.from_bytes(data[:2], "big") if len(data) >= 2 else 1005
            if not self._closing:
                self._closing = True
                try:
                    self._send(CLOSE, data[:2])
                except OSError:
                    pass  # the server has not waited for it
            raise Closed(code, data[2:].decode("utf-8", "replace"))

    def _fail(self, code: int, why: str) -> Closed:
        self.close(code, why)
        return Closed(code, why)

    def _fill(self) -> None:
        try:
            data = self._connection.recv(256 << 10)
        except BlockingIOError:
            return
        if not data:
            raise Closed(1006, "the connection was lost")
        self._received += data


def masked(data: bytes, mask: bytes) -> bytes:
    """As numbers: a loop over bytes would take a second for each megabyte."""
    size = len(data)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")
