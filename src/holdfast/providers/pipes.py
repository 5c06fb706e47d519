"""Unbuffered, asynchronous reads and writes on file descriptors of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import select
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore, Event, Thread
from typing import Final, TypeVar

T = TypeVar("T")
_TERMINALS: Final = BoundedSemaphore(64)
"""Limits the threads that write to terminals. A terminal that blocks forever keeps its thread."""
_PIECE: Final = 4096
_POLL_MS: Final = 200


def on_own_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run blocking work on a thread of its own, so that a slow peer does not occupy a shared thread."""
    executor = ThreadPoolExecutor(1, thread_name_prefix="holdfast-stream")
    try:
        return asyncio.get_running_loop().run_in_executor(executor, work)
    finally:
        executor.shutdown(wait=False)


async def readable(descriptor: int) -> None:
    """Wait until a descriptor has data or has reached its end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        if not future.done():
            future.set_result(None)

    loop.add_reader(descriptor, ready)
    try:
        await future
    finally:
        loop.remove_reader(descriptor)


async def writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        if not future.done():
            future.set_result(None)

    loop.add_writer(descriptor, ready)
    try:
        await future
    finally:
        loop.remove_writer(descriptor)


class Pipe:
    """One end of a pipe, socket or terminal. It has no buffers of its own."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor: int | None = descriptor
        os.set_blocking(descriptor, False)

    def widen(self) -> None:
        """Enlarge the pipe to the kernel's limit for ordinary users, for fewer system calls."""
        if self.descriptor is not None:
            try:
                fcntl.fcntl(self.descriptor, fcntl.F_SETPIPE_SZ, 1 << 20)
            except OSError:
                return  # the user's limit on pipe memory is reached: the pipe is only slower

    async def read(self, limit: int = 1 << 20) -> bytes:
        """Returns some bytes, or none at the end of the stream."""
        while self.descriptor is not None:
            try:
                return os.read(self.descriptor, limit)
            except BlockingIOError:
                await readable(self.descriptor)
            except ConnectionResetError:
                return b""
            except OSError as error:
                if error.errno == errno.EIO:  # a terminal whose last process has ended
                    return b""
                raise
        return b""

    async def write(self, data: bytes) -> None:
        """Write all data. Raises `BrokenPipeError` if the other end is closed."""
        view = memoryview(data)
        while view:
            if self.descriptor is None:
                raise BrokenPipeError(errno.EPIPE, "closed")
            try:
                view = view[os.write(self.descriptor, view) :]
            except BlockingIOError:
                await writable(self.descriptor)

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class Terminal:
    """A terminal shared with a box, which can make writes block. Each write runs on a thread of its own.

    Owns its descriptor until `close`. A thread that writes has its own copy.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor: int | None = descriptor

    async def write(self, data: bytes) -> None:
        """Write all data. Raises `OSError` if the other end is closed or too many terminals block."""
        if self.descriptor is None:
            raise BrokenPipeError(errno.EPIPE, "closed")
        if not _TERMINALS.acquire(blocking=False):
            raise OSError(errno.EAGAIN, "too many terminals do not read their input")
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        given_up = Event()

        def tell(error: OSError | None) -> None:
            if not written.done():
                written.set_exception(error) if error is not None else written.set_result(None)

        def work(descriptor: int) -> None:
            error = None
            try:
                _write_terminal(descriptor, data, given_up)
            except OSError as problem:
                error = problem
            finally:
                os.close(descriptor)
                _TERMINALS.release()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(tell, error)

        Thread(target=work, args=(os.dup(self.descriptor),), name="holdfast-terminal", daemon=True).start()
        try:
            await written
        finally:
            given_up.set()

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def _write_terminal(descriptor: int, data: bytes, given_up: Event) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    view = memoryview(data)
    while view and not given_up.is_set():
        if poll.poll(_POLL_MS):
            os.set_blocking(descriptor, False)
            with contextlib.suppress(BlockingIOError):
                view = view[os.write(descriptor, view[:_PIECE]) :]
