"""Processes of a box on a server: spawned ones, their terminals, channels, and connections to ports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self

from holdfast.api.box.process import Channel, Chunk, Connection, Process, ProcessInfo, Resize, Signal, Stream, Waited
from holdfast.api.errors import Unreachable
from holdfast.client.connection import not_understood
from holdfast.client.resource import END, STDERR, STDIN, STDOUT, Resource, Socket, exit_of

_WAIT_SECONDS: Final = 20.0
_SILENCE_SECONDS: Final = 75.0
"""A process may be silent for longer. Then its output is requested again from the current offset."""
_KEPT_STDERR: Final = 64 * 1024
_WAITING: Final = 64 * 1024 * 1024
"""How many bytes are buffered while a caller waits for a channel to end and none reads it."""


class RemoteProcess(Process):
    def __init__(self, box: Resource, info: ProcessInfo) -> None:
        self.id = info.id
        self.argv = info.argv
        self.pty = info.pty
        self._process = box.below("processes", info.id)

    async def info(self) -> ProcessInfo:
        return (await self._process.ask("GET")).read(ProcessInfo.from_json)

    async def read(self, stream: Stream = "stdout", offset: int = 0, limit: int = 1 << 20) -> bytes:
        wanted = [("stream", stream), ("offset", str(offset)), ("limit", str(min(limit, 16 << 20)))]
        return (await self._process.ask("GET", "/output", parameters=wanted)).body

    async def output(self, stream: Stream = "stdout", offset: int = 0) -> AsyncIterator[Chunk]:
        lost: Unreachable | None = None
        while True:
            wanted = [("stream", stream), ("offset", str(offset)), ("follow", "true")]
            try:
                async with self._process.exchange(
                    "GET", "/output", parameters=wanted, silence=_SILENCE_SECONDS
                ) as response:
                    async for data in response.aiter_bytes():
                        lost = None
                        yield Chunk(offset, data)
                        offset += len(data)
                return
            except Unreachable as error:
                if lost is not None:
                    raise
                lost = error  # one silence or one restart of the server is no reason to give up
            await self._process.ask("GET")  # retries until the server is back, like any request

    async def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _WAIT_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
            wait = min(left, _WAIT_SECONDS)
            answer = await self._process.ask(
                "GET", "/wait", parameters=[("timeout", f"{wait:.3f}")], timeout=_WAIT_SECONDS + 30.0
            )
            code = answer.read(Waited.from_json).exit_code
            if code is not None:
                return int(code)
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"process {self.id} did not exit within {timeout:g} s")

    async def write(self, data: bytes) -> None:
        await self._process.ask("POST", "/stdin", body=data, repeatable=False)

    async def close_stdin(self) -> None:
        await self._process.ask("POST", "/stdin", body=b"", parameters=[("eof", "true")])

    async def signal(self, number: int) -> None:
        await self._process.ask("POST", "/signal", Signal(number=number).to_request(), repeatable=False)

    async def resize(self, rows: int, columns: int) -> None:
        await self._process.ask("POST", "/resize", Resize(rows=rows, columns=columns).to_request())

    def attach(self, offset: int = 0) -> Terminal:
        """Returns the terminal of this process from an output offset: `async with process.attach() as terminal`."""
        return Terminal(self._process, offset)


class Terminal:
    """The input and output of a terminal. The process continues when this is closed."""

    def __init__(self, process: Resource, offset: int) -> None:
        self._process = process
        self._offset = offset
        self._socket: Socket | None = None
        self.exit_code: int | None = None
        """Set once the process has exited."""

    async def __aenter__(self) -> Self:
        self._socket = await self._process.open_socket("/attach", [("offset", str(self._offset))])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def read(self) -> bytes:
        """Returns some output; empty once the process has exited. Raises `Unreachable` if the connection is lost."""
        while self.exit_code is None:
            frame = await self._opened().receive()
            if isinstance(frame, dict):
                self.exit_code = exit_of(frame)
            elif frame:
                return frame
        return b""

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), 1 << 16):
            await self._opened().send(data[start : start + (1 << 16)])

    async def resize(self, rows: int, columns: int) -> None:
        await self._opened().send(json.dumps({"resize": [rows, columns]}))

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()

    def _opened(self) -> Socket:
        if self._socket is None:
            raise RuntimeError("enter the terminal first: async with process.attach() as terminal")
        return self._socket


class _Tagged:
    """Reads tagged frames on demand for several tasks: one task receives, and all waiting tasks see the result."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self.data = bytearray()
        self.stderr = b""
        self.exit_code: int | None = None
        self.ended = False
        self.closed = False
        self._turn = asyncio.Lock()
        self._frames = 0
        self._read = asyncio.Event()

    async def advance(self) -> None:
        """Return when something new has arrived, no matter which task received it."""
        seen = self._frames
        async with self._turn:
            if self._frames != seen or self.ended:
                return
            frame = await self.socket.receive()
            self._frames += 1
            if isinstance(frame, dict):
                self.exit_code = exit_of(frame)
                self.ended = True
            elif frame[:1] == bytes((STDOUT,)):
                self.data += memoryview(frame)[1:]
            elif frame[:1] == bytes((STDERR,)):
                self.stderr = (self.stderr + frame[1:])[-_KEPT_STDERR:]
            elif frame[:1] == bytes((END,)):
                self.ended = True

    async def read(self, limit: int) -> bytes:
        while not self.data and not self.ended:
            await self.advance()
        taken = bytes(self.data[:limit])
        del self.data[:limit]
        self._read.set()
        return taken

    async def end(self) -> int:
        while self.exit_code is None:
            if len(self.data) > _WAITING:
                self._read.clear()
                await self._read.wait()
            else:
                await self.advance()
        return self.exit_code

    async def write(self, data: bytes) -> None:
        await self.socket.send_tagged(STDIN, data)

    async def close_write(self) -> None:
        await self.socket.send(bytes((END,)))

    async def close(self) -> None:
        self.closed = True
        await self.socket.close()


class RemoteConnection(Connection):
    """A connection to a port in a box."""

    def __init__(self, socket: Socket) -> None:
        self._frames = _Tagged(socket)
        self._finished = False

    async def read(self, limit: int = 1 << 16) -> bytes:
        return await self._frames.read(limit)

    async def write(self, data: bytes) -> None:
        await self._frames.write(data)

    async def close_write(self) -> None:
        if not self._finished:
            self._finished = True
            with contextlib.suppress(Unreachable):  # the other side has already closed
                await self._frames.close_write()

    async def close(self) -> None:
        await self._frames.close()


class RemoteChannel(Channel):
    """Stdin and stdout of a process that runs as long as this channel is open."""

    def __init__(self, socket: Socket) -> None:
        self._frames = _Tagged(socket)

    @classmethod
    async def started(cls, socket: Socket) -> RemoteChannel:
        """Wait until the server has started the command. Raises the server's error if it could not."""
        frame = await socket.receive()
        if not isinstance(frame, dict) or "started" not in frame:
            raise not_understood("unexpected first frame of a channel")
        return cls(socket)

    async def read(self, limit: int = 1 << 16) -> bytes:
        return await self._frames.read(limit)

    async def write(self, data: bytes) -> None:
        await self._frames.write(data)

    async def close_write(self) -> None:
        with contextlib.suppress(Unreachable):
            await self._frames.close_write()

    async def close(self) -> None:
        await self._frames.close()

    async def wait(self) -> int:
        return await self._frames.end()

    @property
    def stderr(self) -> bytes:
        """Known once the process has exited."""
        return self._frames.stderr
