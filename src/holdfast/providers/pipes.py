"""Waiting for descriptors, and bytes through them without buffers: for providers that have any on this machine."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


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
