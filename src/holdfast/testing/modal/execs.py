"""Commands in a sandbox of the counterpart: with pipes, or on a terminal."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from holdfast.api.box.box import Box
from holdfast.api.box.process import Process
from holdfast.api.errors.boxes import BoxConflict, BoxError, CannotExecute, ExecTimeout
from holdfast.testing.modal.output import Output

_STDIN_AHEAD: Final = 1 << 20
_KILLED: Final = 137
_NOT_STARTED: Final = 127


class Exec(ABC):
    """A command. Its exit code is None while it runs."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self.ended = asyncio.Event()
        self.written = 0
        """Bytes received for its stdin."""
        self.closed = False
        """Its stdin is complete."""

    @abstractmethod
    def output(self, stderr: bool, offset: int) -> AsyncIterator[bytes]: ...

    @abstractmethod
    async def _take(self, data: bytes) -> None: ...

    @abstractmethod
    async def _close_stdin(self) -> None: ...

    @abstractmethod
    async def kill(self) -> None: ...

    async def write(self, offset: int, data: bytes, eof: bool) -> None:
        """Accept input. Bytes of an earlier attempt, whose answer was lost, are not accepted twice."""
        fresh = data[max(0, self.written - offset) :]
        if fresh and not self.closed:
            self.written += len(fresh)
            await self._take(fresh)
        if eof and not self.closed:
            self.closed = True
            await self._close_stdin()

    def _end(self, code: int) -> None:
        self.exit_code = code
        self.ended.set()


class PipedExec(Exec):
    def __init__(
        self, box: Box, argv: Sequence[str], env: Mapping[str, str], cwd: str | None, timeout: float | None
    ) -> None:
        super().__init__()
        self._stdin: collections.deque[bytes] = collections.deque()
        self._waiting = 0
        self._changed = asyncio.Event()
        self._outputs = (Output(), Output())
        self._task = asyncio.create_task(self._run(box, argv, env, cwd, timeout))

    async def _run(
        self, box: Box, argv: Sequence[str], env: Mapping[str, str], cwd: str | None, timeout: float | None
    ) -> None:
        stdout, stderr = self._outputs
        code = _KILLED
        try:
            done = await box.exec(
                argv,
                env=env,
                cwd=cwd,
                timeout=timeout,
                stdin=self._pieces(),
                on_stdout=stdout.write,
                on_stderr=stderr.write,
            )
            code = done.exit_code
        except CannotExecute as error:
            code = _NOT_STARTED
            await stderr.write(error.message.encode())
        except ExecTimeout:
            pass
        except BoxError as error:
            await stderr.write(error.message.encode())
        finally:
            for each in self._outputs:
                each.end()
            self._end(code)
            self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while True:
            if self._stdin:
                piece = self._stdin.popleft()
                self._waiting -= len(piece)
                self._change()
                yield piece
            elif self.closed:
                return
            else:
                await self._changed.wait()

    def output(self, stderr: bool, offset: int) -> AsyncIterator[bytes]:
        return self._outputs[stderr].read(offset)

    async def _take(self, data: bytes) -> None:
        self._stdin.append(data)
        self._waiting += len(data)
        self._change()
        while self._waiting > _STDIN_AHEAD and not self.ended.is_set():
            await self._changed.wait()

    async def _close_stdin(self) -> None:
        self._change()

    async def kill(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class TerminalExec(Exec):
    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        code = _KILLED
        try:
            code = await self._process.wait()
        except BoxError:
            pass
        finally:
            self._end(code)

    async def output(self, stderr: bool, offset: int) -> AsyncIterator[bytes]:
        if not stderr:
            with contextlib.suppress(BoxError):
                async for chunk in self._process.output(offset=offset):
                    yield chunk.data

    async def _take(self, data: bytes) -> None:
        with contextlib.suppress(BoxConflict):
            await self._process.write(data)

    async def _close_stdin(self) -> None:
        await self._take(b"\x04")

    async def kill(self) -> None:
        with contextlib.suppress(BoxError):
            await self._process.kill()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
