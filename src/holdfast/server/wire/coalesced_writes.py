"""Coalesces the head of an answer with the first part of its body, so that small answers are one write to the socket.

An ASGI app sends the two one after the other, and each write is a system call here and a wake-up of the client.
"""

from __future__ import annotations

import asyncio


class CoalescedWrites:
    """Takes the place of the transport of one request cycle. The first write waits for the second, at most until the
    event loop turns."""

    __slots__ = ("_flushing", "_held", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: bytes | None = None
        self._flushing: asyncio.Handle | None = None

    def write(self, data: bytes) -> None:
        if self._held is not None:
            data, self._held = self._held + data, None
        elif self._flushing is None:
            self._held = data
            self._flushing = self._loop.call_soon(self.flush)
            return
        self._transport.write(data)

    def flush(self) -> None:
        if self._held is not None:
            data, self._held = self._held, None
            self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()
