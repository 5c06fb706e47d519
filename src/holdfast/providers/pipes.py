"""Waiting for descriptors, and bytes through them without buffers: for providers that have any on this machine."""

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
"""Threads that write to terminals. Those that somebody keeps waiting for good are lost, and so must be few."""
_PIECE: Final = 4096
_POLL_MS: Final = 200


def on_own_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """For what waits for the other end of a stream, which may take its time: no thread that others wait for."""
    executor = ThreadPoolExecutor(1, thread_name_prefix="holdfast-stream")
    try:
        return asyncio.get_running_loop().run_in_executor(executor, work)
    finally:
        executor.shutdown(wait=False)


async def readable(descriptor: int) -> None:
    """Wait until a descriptor has something (or its end) to read."""
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
    """One end of a pipe, socket or terminal, without buffers of its own: what is not read waits where it is."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor: int | None = descriptor
        os.set_blocking(descriptor, False)

    def widen(self) -> None:
        """As much room as the kernel gives an ordinary user: fewer turns for the same bytes."""
        if self.descriptor is not None:
            try:
                fcntl.fcntl(self.descriptor, fcntl.F_SETPIPE_SZ, 1 << 20)
            except OSError:
                return  # the user's share of pipe memory is taken: slower, not wrong

    async def read(self, limit: int = 1 << 20) -> bytes:
        """Some bytes; empty at the end."""
        while self.descriptor is not None:
            try:
                return os.read(self.descriptor, limit)
            except BlockingIOError:
                await readable(self.descriptor)
            except ConnectionResetError:
                return b""
            except OSError as error:
                if error.errno == errno.EIO:  # a terminal whose last process has gone
                    return b""
                raise
        return b""

    async def write(self, data: bytes) -> None:
        """All of it. Raises `BrokenPipeError` where nobody reads any more."""
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
    """A terminal that somebody else has too, who may let it block: written to by a thread that has nothing else to do.

    Owns its descriptor until `close`; a thread that is at it has a copy of its own.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor: int | None = descriptor

    async def write(self, data: bytes) -> None:
        """All of it. Raises `OSError` where nobody reads any more, or where too many terminals keep us waiting."""
        if self.descriptor is None:
            raise BrokenPipeError(errno.EPIPE, "closed")
        if not _TERMINALS.acquire(blocking=False):
            raise OSError(errno.EAGAIN, "too many terminals do not take what is written to them")
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
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
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
