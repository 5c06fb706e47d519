"""Sockets on an event loop without transports: bytes go from one to the other with as few copies as the kernel allows.

Each wait ends when the socket is ready or the waiting task is cancelled; deadlines are the owner's to keep.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Protocol

from holdfast.egress.http_head import BadHead
from holdfast.time_limit import time_limit

_PIECE: Final = 64 << 10
_LARGE_PIPE: Final = 1 << 20
_SMALL_PIPE: Final = 256 << 10
_SPLICE: Final = 3  # SPLICE_F_MOVE | SPLICE_F_NONBLOCK
_SETPIPE_SZ: Final = 1031
_BULK: Final = 256 << 10
"""After this many bytes, data is spliced through a pipe in the kernel and no longer copied here."""
_TURN: Final = 1 << 20
"""Bytes after which other tasks of the loop get their turn."""
_DRAINED: Final = 1 << 20
"""The most bytes of a refused request that are still read, so that the other end receives the answer."""
_DRAIN_SECONDS: Final = 2.0
_BARE_LINE_END: Final = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)")


class Meter(Protocol):
    """Counts what is read from one socket."""

    @property
    def piece(self) -> int:
        """The most to read at once."""
        ...

    def count(self, many: int) -> float:
        """Counts bytes that were read. Returns the seconds to wait before the next read."""
        ...


class Ended(Exception):
    """The other end has closed, or sent less than it announced."""


class ReadsNoMore(Ended):
    """The other end no longer reads. It may have sent something before."""


class ReadAhead(ABC):
    """A connection whose heads and lines are read from a buffer. Everything after them stays in it."""

    def __init__(self) -> None:
        self._ahead = bytearray()
        """Data that was read but not used yet."""

    @abstractmethod
    async def more(self) -> bool:
        """Read more data. Returns False at the end of the stream."""

    @property
    def ahead(self) -> bytes:
        return bytes(self._ahead)

    @property
    def buffer(self) -> bytearray:
        """The data that was read ahead, itself. What is used of it is removed from its beginning."""
        return self._ahead

    async def head(self, most: int) -> bytes | None:
        """Returns a head without its empty line, or None if the connection closed before it. Raises `BadHead`."""
        seen = 0
        while True:
            if seen == 0 and self._ahead.startswith(b"\r\n"):
                del self._ahead[:2]  # some clients send an extra empty line after a body
            end = self._ahead.find(b"\r\n\r\n", max(0, seen - 3))
            stop = len(self._ahead) if end < 0 else end
            if _BARE_LINE_END.search(self._ahead, max(0, seen - 1), stop):
                raise BadHead("a line ends in something other than CR LF")
            if stop > most:
                raise BadHead(f"the head is longer than {most} bytes")
            if end >= 0:
                head = bytes(self._ahead[:end])
                del self._ahead[: end + 4]
                return head
            seen = len(self._ahead)
            if not await self.more():
                if self._ahead:
                    raise Ended("the connection closed within a head")
                return None

    async def line(self, most: int) -> bytes:
        """Returns a line without its line end. Raises `BadHead` and `Ended`."""
        while (end := self._ahead.find(b"\r\n", 0, most + 2)) < 0:
            if len(self._ahead) > most + 1:
                raise BadHead("a line is too long")
            if not await self.more():
                raise Ended("the connection closed within a body")
        line = bytes(self._ahead[:end])
        del self._ahead[: end + 2]
        if b"\n" in line or b"\r" in line:
            raise BadHead("a line ends in something other than CR LF")
        return line

    def line_ready(self) -> bool:
        return b"\r\n" in self._ahead

    def take(self, most: int) -> bytes:
        """Returns up to `most` bytes of the data that was read ahead."""
        data = bytes(self._ahead[:most])
        del self._ahead[:most]
        return data

    async def drain(self) -> None:
        """Read the rest of a refused request, because closing with unread bytes would reset the connection and lose the
        answer.
        """
        left = _DRAINED
        try:
            async with time_limit(_DRAIN_SECONDS):
                while left > 0 and await self.more():
                    left -= len(self.take(_DRAINED))
        except TimeoutError:
            pass


class Wire(ReadAhead):
    """A connection in both directions, in the clear or inside TLS. Owned until `close` or `reset`."""

    waiting: bool
    """Whether a read waits for data from the other end."""

    @abstractmethod
    def stale(self) -> bool:
        """Returns whether an idle connection is unusable: the other end closed it or sent data."""

    @abstractmethod
    async def write(self, data: bytes | bytearray | memoryview) -> None: ...

    @abstractmethod
    def finish(self) -> None:
        """Close the sending side. Reading continues."""

    @abstractmethod
    async def pump(self, to: Wire, most: int | None = None) -> int:
        """Relay data to another connection, up to `most` bytes or the end. Returns the number of bytes."""

    @abstractmethod
    def close(self) -> None:
        """Close after pending data is sent. Closing twice has no effect."""

    @abstractmethod
    def reset(self) -> None:
        """Close so that the other end sees a reset."""


class Socket(Wire):
    """Owns one connected socket until `close` or `reset`."""

    def __init__(self, sock: socket.socket, meter: Meter) -> None:
        super().__init__()
        sock.setblocking(False)
        self.socket = sock
        self._meter = meter
        """Counts what is read here."""
        self._loop = asyncio.get_running_loop()
        self.waiting = False

    # --- reading ---

    async def more(self) -> bool:
        while True:
            try:
                data = self.socket.recv(min(_PIECE, self._meter.piece))
            except (BlockingIOError, InterruptedError):
                await self._readable()
            except OSError as error:
                raise Ended(str(error)) from None
            else:
                await self._count(len(data))
                self._ahead += data
                return bool(data)

    async def peek(self, end: bytes, most: int) -> bytes:
        """Returns the first bytes, up to `end` and the byte after it, without consuming them. May return less."""
        while (at := self._ahead.find(end, 0, most)) < 0 or len(self._ahead) <= at + len(end):
            if (at < 0 and len(self._ahead) >= most) or not await self.more():
                break
        return bytes(self._ahead[: most + len(end) + 1])

    def hand_over(self) -> tuple[socket.socket, bytes]:
        """Returns the socket and the unused data. The caller owns the socket then."""
        return socket.socket(fileno=self.socket.detach()), self.take(len(self._ahead))

    def stale(self) -> bool:
        if self._ahead:
            return True
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            pass
        return True

    # --- writing ---

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.socket.send(view) :]
            except (BlockingIOError, InterruptedError):
                await self._ready(self._loop.add_writer, self._loop.remove_writer)
            except OSError as error:
                raise ReadsNoMore(str(error)) from None

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    # --- from one to the other ---

    async def pump(self, to: Wire, most: int | None = None) -> int:
        passed = 0
        if self._ahead:
            data = self.take(len(self._ahead) if most is None else most)
            passed = len(data)
            await to.write(data)
        bulk = _BULK
        turn = 0
        while most is None or passed < most:
            if passed >= bulk and isinstance(to, Socket):
                if (pipe := _pipes.take()) is not None:
                    try:
                        return passed + await self._splice(to, pipe, None if most is None else most - passed)
                    except _CannotSplice:
                        pass
                bulk = passed + (16 << 20)  # all pipes are in use: try again later
            try:
                data = self.socket.recv(min(_PIECE, self._meter.piece, most - passed if most is not None else _PIECE))
            except (BlockingIOError, InterruptedError):
                await self._readable()
                turn = 0
                continue
            except OSError as error:
                raise Ended(str(error)) from None
            if not data:
                break
            passed += len(data)
            turn += len(data)
            await self._count(len(data))
            await to.write(data)
            if turn >= _TURN:
                turn = 0
                await asyncio.sleep(0)
        return passed

    async def _splice(self, to: Socket, pipe: _Pipe, most: int | None) -> int:
        passed = turn = inside = 0
        try:
            while most is None or passed < most:
                wanted = min(pipe.size, self._meter.piece, most - passed if most is not None else pipe.size)
                try:
                    inside = os.splice(self.socket.fileno(), pipe.write, wanted, flags=_SPLICE)
                except (BlockingIOError, InterruptedError):
                    await self._readable()
                    turn = 0
                    continue
                except OSError as error:
                    if passed == 0 and error.errno in (errno.EINVAL, errno.ENOSYS, errno.EPERM):
                        raise _CannotSplice from None
                    raise Ended(str(error)) from None
                if inside == 0:
                    break
                passed += inside
                turn += inside
                await self._count(inside)
                while inside:
                    try:
                        inside -= os.splice(pipe.read, to.socket.fileno(), inside, flags=_SPLICE)
                    except (BlockingIOError, InterruptedError):
                        await to._ready(self._loop.add_writer, self._loop.remove_writer)
                    except OSError as error:
                        raise ReadsNoMore(str(error)) from None
                if turn >= _TURN:
                    turn = 0
                    await asyncio.sleep(0)
        finally:
            if inside:
                _pipes.lose(pipe)  # it still holds data of this connection, so it cannot be reused
            else:
                _pipes.put(pipe)
        return passed

    # --- the end ---

    def close(self) -> None:
        if self.socket.fileno() >= 0:
            self._loop.remove_reader(self.socket)
            self._loop.remove_writer(self.socket)
            self.socket.close()

    def reset(self) -> None:
        if self.socket.fileno() >= 0:
            _linger_not(self.socket)
        self.close()

    async def _count(self, many: int) -> None:
        if many and (delay := self._meter.count(many)) > 0:
            await asyncio.sleep(delay)

    async def _readable(self) -> None:
        self.waiting = True
        try:
            await self._ready(self._loop.add_reader, self._loop.remove_reader)
        finally:
            self.waiting = False

    async def _ready(self, add: Callable[..., Any], remove: Callable[..., Any]) -> None:
        ready = self._loop.create_future()
        try:
            add(self.socket, _settle, ready)
        except (OSError, ValueError) as error:  # closed in the meantime
            raise Ended(str(error)) from None
        try:
            await ready
        finally:
            if self.socket.fileno() >= 0:
                remove(self.socket)


def reset(sock: socket.socket) -> None:
    """Close a socket so that the other end sees a reset."""
    _linger_not(sock)
    sock.close()


def _linger_not(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _CannotSplice(Exception):
    """These sockets or this machine do not support splicing. No data was lost."""


class _Pipe:
    def __init__(self, size: int) -> None:
        self.size = size
        self.read, self.write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a smaller pipe is only slower
            fcntl.fcntl(self.write, _SETPIPE_SZ, size)

    def close(self) -> None:
        os.close(self.read)
        os.close(self.write)


class _Pipes:
    """A bounded pool of empty pipes. Each holds kernel memory if its reader is slow."""

    def __init__(self, most: int, large: int, kept: int) -> None:
        self._most = most
        self._large = large
        self._kept = kept
        self._free: list[_Pipe] = []
        self._out = 0

    def take(self) -> _Pipe | None:
        if self._out >= self._most or not hasattr(os, "splice"):
            return None
        try:
            pipe = self._free.pop() if self._free else _Pipe(_LARGE_PIPE if self._out < self._large else _SMALL_PIPE)
        except OSError:
            return None
        self._out += 1
        return pipe

    def put(self, pipe: _Pipe) -> None:
        self._out -= 1
        if len(self._free) < self._kept:
            self._free.append(pipe)
        else:
            pipe.close()

    def lose(self, pipe: _Pipe) -> None:
        self._out -= 1
        pipe.close()


_pipes: Final = _Pipes(most=256, large=64, kept=16)
