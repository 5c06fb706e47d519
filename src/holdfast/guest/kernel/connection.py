"""A context's side of its connection, which may break and be another tomorrow. One thread reads; anybody may send.

What cannot be sent now waits for the next connection: results and calls all of them, output up to a bound, and what was
dropped beyond that is counted and said.
"""

import _collections  # type: ignore[import-not-found]
import _socket
import _thread
import select
import struct

from holdfast.guest.kernel import json_codec
from holdfast.guest.kernel.descriptors import raised
from holdfast.guest.kernel.protocol import PIECE, Garbage, Unpacker, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_KEPT = 8 << 20
"""Bytes of output that wait for a connection."""
_PACKET = 1 << 16
_MOST_AT_ONCE = 8 << 20
_poll, _POLLIN, _pack_integers, _unpack_integers = select.poll, select.POLLIN, struct.pack, struct.unpack
"""As they are before the user's code can replace them."""


class ContextConnection:
    def __init__(self, control: _socket.socket, greeting: "Callable[[], dict[str, Any]]") -> None:
        """`greeting` is what a new connection is told first."""
        self.control = _socket.socket(fileno=raised(control.fileno()))
        control.close()
        self._greeting = greeting
        self._socket: _socket.socket | None = None
        self._sending = _thread.RLock()
        self._waiting: _collections.deque[bytes] = _collections.deque()
        self._kept = 0
        self.dropped = 0
        self._reader = _Reader()
        self._unconfirmed: dict[str, bytes] = {}
        """Results and calls, until the host has them for sure: sent again on every new connection."""

    # --- sending ---

    def send(self, document: "dict[str, Any]", body: bytes = b"", *, until: "str | None" = None) -> None:
        """`until`: keep it until `confirm` is called with this."""
        message = pack(document, body)
        with self._sending:
            if until is not None:
                self._unconfirmed[until] = message
            if self._socket is not None and self._try(message):
                return
            if until is None:
                self._keep(message)

    def confirm(self, what: str) -> None:
        with self._sending:
            self._unconfirmed.pop(what, None)

    def _try(self, message: bytes) -> bool:
        connection = self._socket
        assert connection is not None
        try:
            connection.sendall(message)
        except OSError:
            self._socket = None
            try:
                connection.shutdown(_socket.SHUT_RDWR)  # who reads it learns of it
            except OSError:
                pass
            return False
        return True

    def _keep(self, message: bytes) -> None:
        if self._kept + len(message) > _KEPT:
            self.dropped += len(message)
            return
        self._waiting.append(message)
        self._kept += len(message)

    def _join(self, connection: _socket.socket) -> None:
        """Go on with another connection."""
        with self._sending:
            self._socket = connection
            if not self._try(pack(self._greeting())):
                return
            self.dropped = 0
            while self._waiting:
                if not self._try(self._waiting[0]):
                    return
                self._kept -= len(self._waiting.popleft())
            for message in list(self._unconfirmed.values()):
                if not self._try(message):
                    return

    # --- reading: one thread ---

    def read(
        self, others: "dict[int, Callable[[], None]]", milliseconds: "int | None" = None
    ) -> "list[tuple[dict[str, Any], bytes]] | None":
        """Wait for messages. Returns None once there is no fork server. Calls those of `others` that have something to
        read."""
        poll = _poll()
        poll.register(self.control.fileno(), _POLLIN)
        for each in others:
            poll.register(each, _POLLIN)
        connection = self._reader.connection
        if connection is not None:
            poll.register(connection.fileno(), _POLLIN)
        found: list[tuple[dict[str, Any], bytes]] = []
        for descriptor, _ in poll.poll(milliseconds):
            if descriptor in others:
                others[descriptor]()
            elif connection is not None and descriptor == connection.fileno():
                found += self._hear(self._reader)
            elif descriptor == self.control.fileno():  # else it is the connection that was just given up
                new = self._receive()
                if new is None:
                    return None
                self._dismiss(self._reader)
                self._reader = _Reader(new)
                self._join(new)
                connection = None
        return found

    def _dismiss(self, reader: "_Reader") -> None:
        """Who is there is told that somebody else is now, and does not come back for that."""
        if reader.connection is not None:
            with self._sending:
                try:
                    reader.connection.send(pack({"t": "taken"}), _socket.MSG_DONTWAIT)
                except OSError:
                    pass
        reader.close()

    def _hear(self, reader: "_Reader") -> "list[tuple[dict[str, Any], bytes]]":
        connection = reader.connection
        assert connection is not None
        try:
            data = connection.recv(min(max(PIECE, reader.unpacker.missing), _MOST_AT_ONCE))
            messages = reader.unpacker.take(data) if data else []
        except (OSError, Garbage):
            data, messages = b"", []
        if not data:
            with self._sending:
                if self._socket is connection:
                    self._socket = None
            reader.close()
        return messages

    def _receive(self) -> "_socket.socket | None":
        _, ancillary, _, _ = self.control.recvmsg(_PACKET, _socket.CMSG_SPACE(4), _socket.MSG_CMSG_CLOEXEC)
        for level, kind, payload in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                given = _socket.socket(fileno=_unpack_integers("i", payload[:4])[0])
                connection = _socket.socket(fileno=raised(given.fileno()))
                given.close()
                connection.setblocking(True)
                try:
                    connection.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
                except OSError:
                    pass
                return connection
        return None

    # --- forks ---

    @property
    def sending(self) -> "_thread.RLock":
        """Held around a fork: then nobody is in the middle of a message."""
        return self._sending

    def tell_fork_server(self, document: "dict[str, Any]", descriptors: "list[int] | None" = None) -> None:
        given = _pack_integers("%di" % len(descriptors), *descriptors) if descriptors else b""
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, given)] if given else []
        self.control.sendmsg([json_codec.dumps(document).encode()], rights)

    def let_go(self) -> None:
        """In a forked child: the parent's connection and control are the parent's."""
        self._socket = None
        self._reader.close()
        self.control.close()

    def descriptors(self) -> "list[int]":
        """Those that it cannot be without."""
        connection = self._reader.connection
        found = [self.control.fileno()]
        if connection is not None and self._socket is connection:
            found.append(connection.fileno())
        return found


class _Reader:
    def __init__(self, connection: "_socket.socket | None" = None) -> None:
        self.connection = connection
        self.unpacker = Unpacker()

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
