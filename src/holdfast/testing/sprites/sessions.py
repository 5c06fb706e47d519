"""Commands in a sprite: they outlive the connection that started them, and their output waits for the next one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from holdfast.api.box.box import Box
from holdfast.api.box.process import Process
from holdfast.api.errors.boxes import BoxError, CannotExecute

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
EXIT: Final = 3
STDIN_EOF: Final = 4
_ROOM: Final = 1 << 20
"""Bytes of output that wait for a connection. While there are more, the command waits."""
_MAX_INPUT: Final = 16
"""Messages of input that wait for the command."""
CANNOT_EXECUTE: Final = 127


class Session:
    """One command, from its start to its end. Connections come and go."""

    def __init__(self, box: Box, argv: list[str], *, env: Mapping[str, str], cwd: str | None, tty: bool) -> None:
        self.id = secrets.token_hex(8)
        self.argv = argv
        self.tty = tty
        self.created = datetime.now(UTC)
        self.exit_code: int | None = None
        self.delivered = False
        """Its output and its exit code have been sent."""
        self._box = box
        # A sprite replaces its whole environment where one is given.
        self._command = ["env", "-i", *(f"{name}={value}" for name, value in env.items()), *argv] if env else argv
        self._cwd = cwd
        self._input: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_INPUT)
        self._output: deque[bytes] = deque()
        self._waiting = 0
        self._changed = asyncio.Condition()
        self._process: Process | None = None
        self._connection = 0
        """The number of the latest connection: only that one gets output."""
        self._task: asyncio.Task[None] | None = None
        self._end_timer: asyncio.TimerHandle | None = None

    @property
    def active(self) -> bool:
        return self.exit_code is None

    def describe(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "command": " ".join(self.argv),
            "workdir": self._cwd or "",
            "created": self.created.isoformat(),
            "bytes_per_second": 0,
            "is_active": self.active,
            "tty": self.tty,
        }

    def start(self, rows: int, columns: int, *, stdin: bool) -> None:
        if not stdin and not self.tty:
            self._input.put_nowait(None)
        work = self._run_terminal(rows, columns) if self.tty else self._run()
        self._task = asyncio.create_task(self._guarded(work))

    async def end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(BoxError):
                await self._process.kill()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._end_timer is not None:
            self._end_timer.cancel()

    # --- the command ---

    async def _guarded(self, work: Any) -> None:
        code = 255
        try:
            code = await work
        except CannotExecute as error:
            code = CANNOT_EXECUTE
            await self._emit(STDERR, error.message.encode())
        except BoxError as error:
            await self._emit(STDERR, error.message.encode())
        finally:
            self.exit_code = code
            async with self._changed:
                self._changed.notify_all()

    async def _run(self) -> int:
        done = await self._box.exec(
            self._command,
            cwd=self._cwd,
            stdin=self._read_input(),
            on_stdout=lambda data: self._emit(STDOUT, data),
            on_stderr=lambda data: self._emit(STDERR, data),
        )
        return done.exit_code

    async def _run_terminal(self, rows: int, columns: int) -> int:
        self._process = await self._box.spawn(self._command, cwd=self._cwd, pty=True, rows=rows, columns=columns)
        typing = asyncio.create_task(self._type(self._process))
        try:
            async for chunk in self._process.output():
                await self._emit(STDOUT, chunk.data)
            return await self._process.wait()
        finally:
            typing.cancel()
            await asyncio.gather(typing, return_exceptions=True)

    async def _type(self, process: Process) -> None:
        async for data in self._read_input():
            await process.write(data)

    async def _read_input(self) -> AsyncIterator[bytes]:
        while (data := await self._input.get()) is not None:
            yield data

    async def _emit(self, stream: int, data: bytes) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting < _ROOM)
            self._output.append(data if self.tty else bytes([stream]) + data)
            self._waiting += len(data)
            self._changed.notify_all()

    # --- connections ---

    async def serve(self, websocket: WebSocket, run_after: float | None) -> None:
        """Serve one connection until it ends, or the command does. The command then runs on for `run_after` seconds."""
        self._connection += 1
        number = self._connection
        if self._end_timer is not None:
            self._end_timer.cancel()
            self._end_timer = None
        async with self._changed:
            self._changed.notify_all()  # the connection before this one has nothing more to do
        await websocket.send_text(
            json.dumps({"type": "session_info", "session_id": self.id, "command": self.argv[0], "tty": self.tty})
        )
        tasks = [asyncio.create_task(self._take(websocket)), asyncio.create_task(self._deliver(websocket, number))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self.active and number == self._connection and run_after is not None:
                loop = asyncio.get_running_loop()
                self._end_timer = loop.call_later(run_after, self._stop_later)

    def _stop_later(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _take(self, websocket: WebSocket) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                message = await websocket.receive()
                if message["type"] != "websocket.receive":
                    return
                if message.get("text") is not None:
                    await self._control(message["text"])
                elif data := message.get("bytes"):
                    if self.tty:
                        await self._input.put(data)
                    elif data[0] == STDIN:
                        await self._input.put(data[1:])
                    elif data[0] == STDIN_EOF:
                        await self._input.put(None)

    async def _control(self, text: str) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError, BoxError):
            told = json.loads(text)
            if told["type"] == "resize" and self._process is not None:
                await self._process.resize(int(told["rows"]), int(told["cols"]))

    async def _deliver(self, websocket: WebSocket, number: int) -> None:
        while number == self._connection:
            async with self._changed:
                await self._changed.wait_for(
                    lambda: bool(self._output) or not self.active or number != self._connection
                )
                if number != self._connection:
                    return
                frame = self._output.popleft() if self._output else None
                if frame is not None:
                    self._waiting -= len(frame) - (0 if self.tty else 1)
                    self._changed.notify_all()
            if frame is None:
                break
            await websocket.send_bytes(frame)
        if number != self._connection:
            return
        code = (self.exit_code or 0) & 255
        if self.tty:
            await websocket.send_text(json.dumps({"type": "exit", "exit_code": code}))
        else:
            await websocket.send_bytes(bytes([EXIT, code]))
        self.delivered = True
        await websocket.close()
