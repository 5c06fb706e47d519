"""A transport over a PTY session of a sandbox, which a WebSocket carries.

Of what Daytona offers, a terminal is the only stream of bytes in both directions. It is made raw, so that it changes
none of them, and a mark tells where the output of our command begins: a shell prints what it likes before.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
from collections.abc import Sequence
from typing import Final, Self

from daytona import AsyncSandbox, DaytonaError
from daytona.handle.async_pty_handle import AsyncPtyHandle

from holdfast.api.errors.boxes import BoxUnreachable
from holdfast.providers.stream import Transport
from holdfast.time_limit import time_limit

_PIECE: Final = 1 << 16
_LARGEST: Final = 1 << 18
"""The most that `read` returns."""
_AHEAD: Final = 64
"""Pieces that were received and nobody has read yet."""
_OPEN_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 3.0


class PtyTransport(Transport):
    """Owns the session and its WebSocket. A lost one is not attached to again: nobody can tell which bytes were lost
    with it.
    """

    def __init__(self, session: str, mark: bytes) -> None:
        self.session = session
        self._mark = mark
        self._handle: AsyncPtyHandle | None = None
        self._prelude: bytearray | None = bytearray()
        """What came before the mark; None after it."""
        self._begun = asyncio.Event()
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(_AHEAD)
        self._closed = False
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, sandbox: AsyncSandbox, command: Sequence[str]) -> Self:
        """Start a command on a terminal of its own. Raises `DaytonaError` or `BoxUnreachable`."""
        nonce = secrets.token_hex(8)
        transport = cls(f"holdfast-{nonce}", f"hf{nonce}".encode())
        # The shell echoes this line. The mark does not occur in it.
        line = f"stty raw -echo && printf 'hf%s' {nonce} && exec {shlex.join(command)} 2>/dev/null\n"
        try:
            async with time_limit(_OPEN_SECONDS):
                handle = await sandbox.process.create_pty_session(
                    transport.session, transport.on_data, cwd="/", envs={"HISTFILE": "/dev/null"}
                )
                transport._handle = handle
                transport._watch = asyncio.create_task(transport._wait_for_end(handle))
                await handle.send_input(line)
                await transport._begun.wait()
        except BaseException as error:
            await transport.close()
            with contextlib.suppress(DaytonaError, TimeoutError, OSError):
                await kill(sandbox, transport.session)
            if isinstance(error, TimeoutError):
                raise BoxUnreachable(f"the terminal of the stream did not open within {_OPEN_SECONDS:.0f} s") from None
            raise
        if transport._prelude is not None:
            await transport.close()
            raise BoxUnreachable("the terminal of the stream has ended at once")
        return transport

    async def on_data(self, data: bytes) -> None:
        if self._prelude is not None:
            self._prelude += data
            _, found, rest = bytes(self._prelude).partition(self._mark)
            if not found:
                del self._prelude[: -len(self._mark)]
                return
            self._prelude, data = None, rest
            self._begun.set()
        for start in range(0, len(data), _LARGEST):
            await self._pieces.put(data[start : start + _LARGEST])

    async def _wait_for_end(self, handle: AsyncPtyHandle) -> None:
        with contextlib.suppress(DaytonaError, OSError):
            await handle.wait()
        self._begun.set()
        await self._pieces.put(b"")

    async def read(self) -> bytes:
        if self._closed:
            return b""
        data = await self._pieces.get()
        if not data:
            self._closed = True
        return data

    async def write(self, data: bytes) -> None:
        if self._closed or self._handle is None:
            raise ConnectionAbortedError("closed")
        try:
            for start in range(0, len(data), _PIECE):
                await self._handle.send_input(data[start : start + _PIECE])
        except DaytonaError as error:
            raise ConnectionResetError(str(error)) from None

    async def close(self) -> None:
        handle, self._handle = self._handle, None
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        while not self._pieces.empty():
            self._pieces.get_nowait()
        self._pieces.put_nowait(b"")  # ends a pending read
        if handle is None:
            return
        with contextlib.suppress(DaytonaError, TimeoutError, OSError):
            async with time_limit(_CLOSE_SECONDS):
                await handle.kill()
        await handle.disconnect()


async def kill(sandbox: AsyncSandbox, session: str) -> None:
    """End a session that may have ended already."""
    async with time_limit(_CLOSE_SECONDS):
        await sandbox.process.kill_pty_session(session)
