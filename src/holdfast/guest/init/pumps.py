"""The parts of a bridge's calls: bytes from descriptors, bytes to descriptors, and requests to the guest.

Each does what is possible without blocking, and registers with the bridge's loop for more. Runs in a box.
"""

import collections
import errno
import fcntl
import os
import select
import socket
import stat
import sys
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from holdfast.guest.init import codec, frames

    class Bridge(Protocol):
        """The part of a `StreamServer` that its calls use."""

        calls: "dict[int, Call]"
        changes: "Changes"
        choked: bool
        idle_since: float
        steady: "set[Source]"

        def send(self, kind: int, number: int, payload: bytes = b"") -> None: ...

        def send_message(self, call: int, message: bytes) -> None: ...

        def watch(self, descriptor: int, events: int, react: "Callable[[int], None]") -> None: ...

        def unwatch(self, descriptor: int) -> None: ...

        def watch_source(self, descriptor: int, react: "Callable[[], None]") -> None: ...

        def unwatch_source(self, descriptor: int) -> None: ...

else:
    import codec
    import frames

SOCKET = "guest.sock"
"""The guest's socket in the current folder."""
_MAX_DESCRIPTORS = 4
_TURN = 4
"""How many pieces of one stream are sent before others get a turn."""
_LINGER = 60.0
"""Seconds for a port to accept the remaining data after the host has disconnected."""


class Lost(Exception):
    """The host or the guest is gone, or broke the protocol."""


class Source:
    """Sends the bytes of a descriptor to the host."""

    def __init__(self, bridge: "Bridge", number: int, descriptor: int, on_end: "Callable[[int], None]") -> None:
        self.bridge = bridge
        self.number = number
        self.descriptor = descriptor
        self.on_end = on_end
        """Called with an errno, or 0 for a normal end."""
        self.credit = frames.FIRST_CREDIT
        self.left: int | None = None
        """How many bytes are left until it is cut off."""
        self.ended = False
        self.steady = stat.S_ISREG(os.fstat(descriptor).st_mode)
        """Whether it is a file, which is always ready and cannot be waited for."""
        self.watched = False
        self.keeper: Callable[[int], None] | None = None
        """Gets the descriptor at the end, if others still write to it."""
        self.ready()

    def ready(self) -> None:
        """There may be something to read, or credit to send it."""
        wanted = not self.ended and self.credit > 0
        if self.steady:
            if wanted:
                self.bridge.steady.add(self)
            else:
                self.bridge.steady.discard(self)
        elif wanted != self.watched:
            self.watched = wanted
            if wanted:
                self.bridge.watch_source(self.descriptor, self.pump)
            else:
                self.bridge.unwatch_source(self.descriptor)

    def granted(self, count: int) -> None:
        self.credit += count
        self.ready()

    def cut_off(self) -> None:
        """Send what is available and no more, because the writer may never stop."""
        if not self.ended:
            count = bytearray(4)
            fcntl.ioctl(self.descriptor, termios.FIONREAD, count)
            self.left = int.from_bytes(count, sys.byteorder)
            if self.left == 0:
                self.end(0)

    def pump(self) -> None:
        for _ in range(_TURN):
            if self.ended or self.credit <= 0 or self.bridge.choked:
                break
            wanted = min(self.credit, frames.LONGEST)
            try:
                data = os.read(self.descriptor, wanted if self.left is None else min(self.left, wanted))
            except BlockingIOError:
                return
            except OSError as error:
                if self.steady:
                    self.end(error.errno or errno.EIO)
                    return
                data = b""  # a reset, or a terminal without a process
            if not data:
                self.exhausted()
                return
            self.credit -= len(data)
            self.bridge.send(frames.DATA, self.number, data)
            if self.left is not None:
                self.left -= len(data)
                if self.left == 0:
                    self.end(0)
        self.ready()

    def exhausted(self) -> None:
        self.end(0)

    def end(self, number: int) -> None:
        if not self.ended:
            self.close()
            self.bridge.send(frames.END, self.number)
            self.on_end(number)

    def close(self) -> None:
        if not self.ended:
            self.ended = True
            self.ready()
            if self.keeper is not None and has_writers(self.descriptor):
                self.keeper(self.descriptor)
            os.close(self.descriptor)


class Follow(Source):
    """Sends a file that is still being written."""

    def __init__(self, bridge: "Bridge", number: int, descriptor: int, on_end: "Callable[[int], None]") -> None:
        super().__init__(bridge, number, descriptor, on_end)
        self.complete = False
        """Nothing more will be added."""
        self.change = bridge.changes.add(descriptor, self.ready)

    def exhausted(self) -> None:
        if self.complete:
            self.end(0)
        else:
            self.bridge.steady.discard(self)

    def completed(self) -> None:
        self.complete = True
        self.ready()

    def close(self) -> None:
        if not self.ended:
            self.bridge.changes.remove(self.change)
        super().close()


class Sink:
    """Writes bytes from the host to a descriptor, which may be attached later."""

    def __init__(self, bridge: "Bridge", number: int, on_end: "Callable[[int], None]") -> None:
        self.bridge = bridge
        self.number = number
        self.on_end = on_end
        """Called with an errno, or 0 if everything was written."""
        self.descriptor: int | None = None
        self.connection: socket.socket | None = None
        self.pending: collections.deque[memoryview] = collections.deque()
        self.window = frames.Window()
        self.complete = False
        self.ended = False
        self.watched = False

    def attach(self, descriptor: int, connection: "socket.socket | None" = None) -> None:
        self.descriptor = descriptor
        self.connection = connection
        self.flush()

    def take(self, data: bytes) -> None:
        if not self.window.arrived(len(data)) or self.complete:
            raise Lost("more than was granted")
        if self.ended:
            return
        self.pending.append(memoryview(data))
        if len(self.pending) == 1:
            self.flush()

    def complete_now(self) -> None:
        self.complete = True
        self.flush()

    def flush(self) -> None:
        if self.descriptor is None or self.ended:
            return
        taken = 0
        blocked = False
        try:
            while self.pending:
                piece = self.pending[0]
                written = os.write(self.descriptor, piece)
                taken += written
                if written == len(piece):
                    self.pending.popleft()
                else:
                    self.pending[0] = piece[written:]
        except BlockingIOError:
            blocked = True
        except OSError as error:
            self.end(error.errno or errno.EIO)
            return
        more = self.window.taken(taken)
        if more and not self.complete:
            self.bridge.send(frames.CREDIT, self.number, more.to_bytes(4, "big"))
        if blocked != self.watched:
            self.watched = blocked
            if blocked:
                self.bridge.watch(self.descriptor, select.EPOLLOUT, lambda events: self.flush())
            else:
                self.bridge.unwatch(self.descriptor)
        if self.complete and not self.pending:
            self.end(0)

    def end(self, number: int) -> None:
        if not self.ended:
            if self.connection is not None:
                try:
                    self.connection.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
            self.close()
            if number:
                self.bridge.send(frames.STOP, self.number)
            self.on_end(number)

    def close(self) -> None:
        self.ended = True
        self.pending.clear()
        if self.descriptor is not None:
            if self.watched:
                self.bridge.unwatch(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = None


def has_writers(pipe: int) -> bool:
    """Returns whether a pipe that does not block may still be written to. What it holds is lost."""
    try:
        return os.read(pipe, frames.LONGEST) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def tell_guest(request: "Any", descriptors: "Sequence[int]") -> None:
    """Send a request to the guest whose answer does not matter. Raises `OSError` if there is no guest."""
    rights = b"".join([each.to_bytes(4, sys.byteorder) for each in descriptors])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as connection:
        connection.connect(SOCKET)
        connection.sendmsg([codec.frame(request)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


class GuestRequest:
    """One connection to the guest: a request, then its messages."""

    def __init__(
        self,
        bridge: "Bridge",
        request: "Any",
        descriptors: "Sequence[int]",
        on_message: "Callable[[bytes, list[int]], None]",
        on_hangup: "Callable[[], None]",
    ) -> None:
        """Raises `OSError` if there is no guest."""
        self.bridge = bridge
        self.on_message = on_message
        self.on_hangup = on_hangup
        self.received = bytearray()
        self.descriptors: list[int] = []
        self.unsent = b""
        self.closed = False
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            self.socket.connect(SOCKET)
            data = codec.frame(request)
            rights = b"".join([each.to_bytes(4, sys.byteorder) for each in descriptors])
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
            self.unsent = data[self.socket.sendmsg([data], ancillary) :]
        except BaseException:
            self.socket.close()
            raise
        self.watch()

    def watch(self) -> None:
        events = select.EPOLLIN | (select.EPOLLOUT if self.unsent else 0)
        self.bridge.watch(self.socket.fileno(), events, self.on_event)

    def send(self, message: "Any") -> None:
        self.unsent += codec.frame(message)
        self.flush()

    def flush(self) -> None:
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            return  # it has disconnected, which reading detects
        self.watch()

    def on_event(self, events: int) -> None:
        if self.unsent and events & select.EPOLLOUT:
            self.flush()
        if not events & ~select.EPOLLOUT:
            return
        try:
            data, ancillary, _, _ = self.socket.recvmsg(1 << 16, socket.CMSG_SPACE(4 * _MAX_DESCRIPTORS))
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                for start in range(0, len(payload) - len(payload) % 4, 4):
                    descriptor = int.from_bytes(payload[start : start + 4], sys.byteorder)
                    os.set_inheritable(descriptor, False)
                    self.descriptors.append(descriptor)
        if not data:
            self.close()
            self.on_hangup()
            return
        self.received += data
        while not self.closed and len(self.received) >= 4:
            length = int.from_bytes(self.received[:4], "big")
            if len(self.received) < 4 + length:
                return
            message = bytes(self.received[4 : 4 + length])
            del self.received[: 4 + length]
            descriptors, self.descriptors = self.descriptors, []
            self.on_message(message, descriptors)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.bridge.unwatch(self.socket.fileno())
            self.socket.close()
            for each in self.descriptors:
                os.close(each)
            self.descriptors = []


class Call:
    """One request of the host, or one connection to the egress, with its streams."""

    def __init__(self, bridge: "Bridge", number: int) -> None:
        self.bridge = bridge
        self.number = number
        self.parts = bytearray()
        self.begun = False
        self.sources: dict[int, Source] = {}
        self.sinks: dict[int, Sink] = {}
        self.guest_request: GuestRequest | None = None
        self.on_close: Callable[[], None] | None = None
        self.counts = False
        """Whether it counts as an open connection that the guest does not know of."""
        self.deadline = 0.0
        """When remaining data is dropped."""
        self.abandoned = False
        bridge.calls[number] = self

    def source(
        self, stream: int, descriptor: int, on_end: "Callable[[int], None] | None" = None, follow: bool = False
    ) -> Source:
        kind = Follow if follow else Source
        made = kind(self.bridge, self.number * frames.STREAMS + stream, descriptor, on_end or (lambda number: None))
        self.sources[stream] = made
        return made

    def sink(self, stream: int, on_end: "Callable[[int], None] | None" = None) -> Sink:
        made = Sink(self.bridge, self.number * frames.STREAMS + stream, on_end or (lambda number: None))
        self.sinks[stream] = made
        return made

    def ask(
        self,
        request: "Any",
        descriptors: "Sequence[int]" = (),
        on_message: "Callable[[bytes, list[int]], None] | None" = None,
    ) -> None:
        try:
            self.guest_request = GuestRequest(
                self.bridge, request, descriptors, on_message or self.answer_raw, self.hung_up
            )
        except (FileNotFoundError, ConnectionRefusedError):
            raise Lost("the guest has gone") from None
        except OSError as error:
            self.answer({"unreachable": "the guest does not keep up: %s" % error.strerror})

    def asked(self) -> None:
        """The guest has sent its last message."""
        if self.guest_request is not None:
            self.guest_request.close()

    def hung_up(self) -> None:
        """The guest disconnected without an answer. If it has exited, the bridge is about to notice, which is a better
        reason.
        """
        self.abandoned = True

    def send(self, message: "Any") -> None:
        self.bridge.send_message(self.number, codec.encode(message))

    def answer(self, message: "Any") -> None:
        """Send the final message."""
        self.send(message)
        self.close()

    def answer_raw(self, message: bytes, descriptors: "list[int]") -> None:
        for each in descriptors:
            os.close(each)
        self.bridge.send_message(self.number, message)
        self.close()

    def refuse(self, number: int, about: str) -> None:
        self.answer({"error": number, "about": about})

    def close(self) -> None:
        """Tell the host that this call is over."""
        if self.number in self.bridge.calls:
            self.bridge.send(frames.CLOSE, self.number)
            self.drop()

    def drop(self) -> None:
        if self.bridge.calls.pop(self.number, None) is None:
            return
        if self.counts:
            self.bridge.idle_since = time.monotonic()
        if self.guest_request is not None:
            self.guest_request.close()
        for source in self.sources.values():
            source.close()
        for sink in self.sinks.values():
            sink.close()
        if self.on_close is not None:
            self.on_close()

    def hang_up(self) -> None:
        """The host is done with this call. Data on its way to a port still gets there, as with a closed socket."""
        for source in self.sources.values():
            source.close()
        lingering = [sink for sink in self.sinks.values() if sink.connection is not None and sink.pending]
        if not lingering:
            self.drop()
            return
        self.deadline = time.monotonic() + _LINGER
        for sink in lingering:
            sink.on_end = lambda number: self.drop()
            sink.complete_now()


class Changes:
    """Notifies when files grow: with inotify if available, otherwise by polling."""

    def __init__(self, bridge: "Bridge") -> None:
        self._bridge = bridge
        self._notify: int | None = None
        self._libc: Any = None
        self._by_watch: dict[int, dict[int, Callable[[], None]]] = {}
        self._polled: dict[int, Callable[[], None]] = {}
        self._watch_of: dict[int, int] = {}
        self._last = 0

    def add(self, descriptor: int, react: "Callable[[], None]") -> int:
        self._last += 1
        watch = self._add_watch(descriptor)
        if watch is None:
            self._polled[self._last] = react
        else:
            self._by_watch.setdefault(watch, {})[self._last] = react
            self._watch_of[self._last] = watch
        return self._last

    def _add_watch(self, descriptor: int) -> "int | None":
        if self._libc is None:
            try:
                import ctypes

                self._libc = ctypes.CDLL(None)
                self._notify = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
                if self._notify < 0:
                    self._notify = None
                else:
                    self._bridge.watch(self._notify, select.EPOLLIN, self._on_event)
            except (ImportError, OSError, AttributeError):
                self._libc = False
        if self._notify is None:
            return None
        watch: int = self._libc.inotify_add_watch(self._notify, b"/proc/self/fd/%d" % descriptor, 0x2)  # IN_MODIFY
        return watch if watch >= 0 else None

    def remove(self, number: int) -> None:
        self._polled.pop(number, None)
        watch = self._watch_of.pop(number, None)
        if watch is not None:
            of_it = self._by_watch[watch]
            del of_it[number]
            if not of_it:
                del self._by_watch[watch]
                self._libc.inotify_rm_watch(self._notify, watch)

    def _on_event(self, events: int) -> None:
        assert self._notify is not None
        try:
            data = os.read(self._notify, 1 << 16)
        except BlockingIOError:
            return
        start = 0
        while start + 16 <= len(data):
            watch = int.from_bytes(data[start : start + 4], sys.byteorder, signed=True)
            start += 16 + int.from_bytes(data[start + 12 : start + 16], sys.byteorder)
            reacting = self._by_watch if watch == -1 else {watch: self._by_watch.get(watch, {})}
            for of_it in list(reacting.values()):  # -1: some events were lost, so check all
                for react in list(of_it.values()):
                    react()

    @property
    def polls(self) -> bool:
        return bool(self._polled)

    def poll(self) -> None:
        for react in list(self._polled.values()):
            react()


def close_all(descriptors: "Sequence[int]") -> None:
    for each in descriptors:
        os.close(each)
