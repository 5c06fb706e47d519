"""The connection of a context to its host. It may break and be replaced. One thread reads; any thread may send.

Messages that cannot be sent wait for the next connection: all results and calls, and output up to a bound. Dropped
output is counted and reported.
"""

import _collections  # type: ignore[import-not-found]
import _socket
import _thread
import select
import struct

from holdfast.guest.kernel import json_codec
from holdfast.guest.kernel.descriptors import duplicate_high
from holdfast.guest.kernel.protocol import PIECE, InvalidMessage, Unpacker, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_KEPT = 8 << 20
"""The largest output that waits for a connection, in bytes."""
_PACKET = 1 << 16
_MOST_AT_ONCE = 8 << 20
_poll, _POLLIN, _pack_integers, _unpack_integers = select.poll, select.POLLIN, struct.pack, struct.unpack
"""Saved before user code can replace them."""


class ContextConnection:
    def __init__(self, control: _socket.socket, greeting: "Callable[[], dict[str, Any]]") -> None:
        """`greeting` returns the first message on a new connection."""
        self.control = _socket.socket(fileno=duplicate_high(control.fileno()))
        control.close()
        self._greeting = greeting
        self._socket: _socket.socket | None = None
        self._sending = _thread.RLock()
        self._waiting: _collections.deque[bytes] = _collections.deque()
        self._kept = 0
        self.dropped = 0
        self._reader = _Reader()
        self._unconfirmed: dict[str, bytes] = {}
        """Results and calls that the host has not confirmed. They are sent again on every new connection."""

    # --- sending ---

    def send(self, document: "dict[str, Any]", body: bytes = b"", *, until: "str | None" = None) -> None:
        """With `until`, keep the message until `confirm` is called with this key."""
        message = pack(document, body)
        with self._sending:
            if until is not None:
                self._unconfirmed[until] = message
            if self._socket is not None and self._try_send(message):
                return
            if until is None:
                self._keep(message)

    def confirm(self, what: str) -> None:
        with self._sending:
            self._unconfirmed.pop(what, None)

    def _try_send(self, message: bytes) -> bool:
        connection = self._socket
        assert connection is not None
        try:
            connection.sendall(message)
        except OSError:
            self._socket = None
            try:
                connection.shutdown(_socket.SHUT_RDWR)  # so that the reader notices
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

    def _attach(self, connection: _socket.socket) -> None:
        """Continue with a new connection."""
        with self._sending:
            self._socket = connection
            if not self._try_send(pack(self._greeting())):
                return
            self.dropped = 0
            while self._waiting:
                if not self._try_send(self._waiting[0]):
                    return
                self._kept -= len(self._waiting.popleft())
            for message in list(self._unconfirmed.values()):
                if not self._try_send(message):
                    return

    # --- reading: one thread ---

    def read(
        self, others: "dict[int, Callable[[], None]]", milliseconds: "int | None" = None
    ) -> "list[tuple[dict[str, Any], bytes]] | None":
        """Wait for messages. Returns None when the fork server has ended. Calls the callbacks of `others` whose
        descriptors can be read."""
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
                found += self._receive_messages(self._reader)
            elif descriptor == self.control.fileno():  # otherwise it is the connection that was just closed
                new = self._receive_connection()
                if new is None:
                    return None
                self._replace_reader(self._reader)
                self._reader = _Reader(new)
                self._attach(new)
                connection = None
        return found

    def _replace_reader(self, reader: "_Reader") -> None:
        """Tell the old host that another one has taken over, so that it does not reconnect."""
        if reader.connection is not None:
            with self._sending:
                try:
                    reader.connection.send(pack({"t": "taken"}), _socket.MSG_DONTWAIT)
                except OSError:
                    pass
        reader.close()

    def _receive_messages(self, reader: "_Reader") -> "list[tuple[dict[str, Any], bytes]]":
        connection = reader.connection
        assert connection is not None
        try:
            data = connection.recv(min(max(PIECE, reader.unpacker.missing), _MOST_AT_ONCE))
            messages = reader.unpacker.take(data) if data else []
        except (OSError, InvalidMessage):
            data, messages = b"", []
        if not data:
            with self._sending:
                if self._socket is connection:
                    self._socket = None
            reader.close()
        return messages

    def _receive_connection(self) -> "_socket.socket | None":
        _, ancillary, _, _ = self.control.recvmsg(_PACKET, _socket.CMSG_SPACE(4), _socket.MSG_CMSG_CLOEXEC)
        for level, kind, payload in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                given = _socket.socket(fileno=_unpack_integers("i", payload[:4])[0])
                connection = _socket.socket(fileno=duplicate_high(given.fileno()))
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
        """Held during a fork, so that no thread is in the middle of a message."""
        return self._sending

    def tell_fork_server(self, document: "dict[str, Any]", descriptors: "list[int] | None" = None) -> None:
        given = _pack_integers("%di" % len(descriptors), *descriptors) if descriptors else b""
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, given)] if given else []
        self.control.sendmsg([json_codec.dumps(document).encode()], rights)

    def close_inherited(self) -> None:
        """Close the copies of the parent's descriptors, in a forked child."""
        self._socket = None
        self._reader.close()
        self.control.close()

    def descriptors(self) -> "list[int]":
        """The descriptors that it needs."""
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
