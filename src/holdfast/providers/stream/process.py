"""Processes of a box that is reached over a stream. The box keeps the output of spawned processes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from typing import Any, Final

from holdfast.api.box.process import MAX_OUTPUT, Channel, Chunk, Completed, Process, ProcessInfo, ProcessState, Sink
from holdfast.api.box.process import Stream as StreamName
from holdfast.api.errors.boxes import (
    BoxConflict,
    BoxGone,
    BoxStopped,
    BoxUnreachable,
    ExecTimeout,
    InvalidSpec,
    ProcessLost,
    ProcessNotFound,
    Unsupported,
)
from holdfast.api.ids import new_id, now_ms
from holdfast.providers.guest_protocol import (
    Collected,
    GuestRefused,
    Tail,
    cannot_execute,
    cannot_tell,
    check_terminal,
    many,
    number_in,
    number_of,
    start_request,
    text_of,
)
from holdfast.providers.stream.guest_client import Call, GuestRequests, Stream
from holdfast.time_limit import time_limit

_PIECE: Final = 1 << 18
_ID: Final = re.compile(r"p-[0-9a-z]{5,40}")
_MAX_READ: Final = 16 << 20
_MAX_MOMENT: Final = 1 << 50
_AGAIN: Final = (0.1, 0.5, 2.0)
"""Seconds before a wait or a follower whose stream was lost tries again. The process continues meanwhile."""
_INPUT, _OUTPUT, _ERRORS = 0, 1, 2


class StreamProcesses:
    """Starts processes in a box, and finds those that were spawned there."""

    def __init__(self, guest: GuestRequests) -> None:
        self._guest = guest

    # --- while somebody listens ---

    async def exec(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        timeout: float | None = None,
        on_stdout: Sink | None = None,
        on_stderr: Sink | None = None,
        max_output: int = MAX_OUTPUT,
        probe: bool = False,
    ) -> Completed:
        """With `probe`, the command only tests the box and does not count as work."""
        request = start_request("exec", argv, env, cwd, looks=probe)
        output, errors = _Drain(on_stdout, max_output), _Drain(on_stderr, max_output)
        with await self._guest.call(request) as call:
            if not stdin:
                call.streams[_INPUT].finish()
            try:
                async with time_limit(timeout):
                    code = await _attend(call, output, errors, stdin)
            except TimeoutError:
                raise ExecTimeout(
                    f"{argv[0]} did not end in {timeout} s and was killed",
                    stdout=bytes(output.kept),
                    stderr=bytes(errors.kept),
                ) from None
            except GuestRefused as refused:
                raise cannot_execute(refused, argv, cwd) from None
        return Completed(code, bytes(output.kept), bytes(errors.kept))

    async def channel(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> StreamChannel:
        """Returns once the command runs."""
        call = await self._guest.call(start_request("exec", argv, env, cwd, acknowledge=True))
        try:
            await call.answer()
        except GuestRefused as refused:
            call.close()
            raise cannot_execute(refused, argv, cwd) from None
        except BaseException:
            call.close()
            raise
        return StreamChannel(call)

    # --- for good ---

    async def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        *,
        stdin: bool,
        size: tuple[int, int] | None,
        tree: bool = False,
    ) -> KeptProcess:
        id = new_id("p")
        pty = None if size is None else list(size)
        request = start_request("spawn", argv, env, cwd, id=id, stdin=stdin, pty=pty, tree=tree, startedAt=now_ms())
        try:
            await self._guest.ask(request)
        except GuestRefused as refused:
            raise cannot_execute(refused, argv, cwd) from None
        return KeptProcess(
            self._guest, _Report(id, tuple(argv), size is not None, stdin, request["startedAt"], None, None)
        )

    async def get(self, id: str) -> KeptProcess:
        """Raises `ProcessNotFound`."""
        return KeptProcess(self._guest, await _read_report(self._guest, id))

    async def all(self) -> list[ProcessInfo]:
        """Returns all spawned processes, oldest first."""
        found = await _read_reports(self._guest)
        return list(await asyncio.gather(*(KeptProcess(self._guest, each).info_of(each) for each in found)))


class _Drain:
    """Reads one stream of a command into a sink or into memory."""

    def __init__(self, sink: Sink | None, limit: int) -> None:
        self._sink = sink
        self.kept = Collected(limit)

    async def run(self, stream: Stream) -> None:
        while data := await stream.read(_PIECE):
            if self._sink is None:
                self.kept.add(data)
            elif (taking := self._sink(data)) is not None:
                await taking


async def _attend(call: Call, output: _Drain, errors: _Drain, stdin: bytes | AsyncIterable[bytes]) -> int:
    """Feed, read and wait concurrently. The first failure ends all. The exit code comes after all output."""
    ending: asyncio.Task[int] = asyncio.create_task(_exit_code(call))
    tasks: list[asyncio.Task[Any]] = [
        asyncio.create_task(output.run(call.streams[_OUTPUT])),
        asyncio.create_task(errors.run(call.streams[_ERRORS])),
        ending,
    ]
    feeding = [asyncio.create_task(_feed(call.streams[_INPUT], stdin))] if stdin else []
    try:
        waiting: set[asyncio.Task[Any]] = {*tasks, *feeding}
        while not all(task.done() for task in tasks):
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if ending in done:
                ending.result()  # raises the reason, while the streams only know that they were cut
            for task in done:
                task.result()
        return ending.result()
    finally:
        for task in (*tasks, *feeding):
            task.cancel()
        await asyncio.gather(*tasks, *feeding, return_exceptions=True)


async def _exit_code(call: Call) -> int:
    return number_in(await call.answer(None), "code")


async def _feed(stream: Stream, data: bytes | AsyncIterable[bytes]) -> None:
    if isinstance(data, (bytes, bytearray, memoryview)):
        await _taken(stream, bytes(data))
    else:
        async for piece in data:
            if not await _taken(stream, piece):
                return
    stream.finish()


async def _taken(stream: Stream, data: bytes) -> bool:
    """Whether a command accepted its input. It need not read all of it, and if it has ended, its exit tells more."""
    try:
        await stream.write(data)
    except (BrokenPipeError, BoxUnreachable, BoxStopped, BoxGone):
        return False
    return True


class StreamChannel(Channel):
    """Stdin and stdout of a process as streams of one call. The process ends with the call."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._tail = Tail()
        self._listening = asyncio.create_task(self._listen())
        self._ending = asyncio.create_task(self._wait())

    async def _listen(self) -> None:
        while data := await self._call.streams[_ERRORS].read(self._tail.limit):
            self._tail.add(data)

    async def _wait(self) -> int:
        code = await _exit_code(self._call)
        with contextlib.suppress(BoxUnreachable):
            await asyncio.shield(self._listening)  # so that all of stderr is there before the exit
        return code

    @property
    def stderr(self) -> bytes:
        return bytes(self._tail)

    async def read(self, limit: int = 1 << 16) -> bytes:
        return await self._call.streams[_OUTPUT].read(limit)

    async def write(self, data: bytes) -> None:
        try:
            await self._call.streams[_INPUT].write(data)
        except BrokenPipeError:
            raise BoxConflict("the process no longer reads its stdin") from None

    async def close_write(self) -> None:
        self._call.streams[_INPUT].finish()

    async def wait(self) -> int:
        try:
            return await asyncio.shield(self._ending)
        except GuestRefused as refused:
            raise BoxUnreachable(f"the guest reported an invalid end of the process: {refused}") from None

    async def close(self) -> None:
        self._call.close()
        for task in (self._listening, self._ending):
            task.cancel()
        await asyncio.gather(self._listening, self._ending, return_exceptions=True)


# --- kept in the box --------------------------------------------------------------------------------------------------


class _Report:
    """What the box reports about a process."""

    __slots__ = ("argv", "code", "ended_at", "id", "pty", "started_at", "stdin")

    def __init__(
        self,
        id: str,
        argv: tuple[str, ...],
        pty: bool,
        stdin: bool,
        started_at: int,
        code: int | None,
        ended_at: int | None,
    ) -> None:
        self.id = id
        self.argv = argv
        self.pty = pty
        self.stdin = stdin
        self.started_at = started_at
        self.code = code
        self.ended_at = ended_at


def _parse_report(report: Any) -> _Report:
    """Raises `TypeError` or `KeyError` if the report is invalid."""
    code, ended_at = report["code"], report["endedAt"]
    id, started_at = text_of(report["id"]), number_of(report["startedAt"])
    argv = tuple(text_of(each) for each in report["argv"])
    if not _ID.fullmatch(id) or not argv or not 0 <= started_at < _MAX_MOMENT:
        raise TypeError("not a process")
    if code is not None and not 0 <= number_of(code) <= 255:
        raise TypeError("not an exit code")
    if ended_at is not None and not 0 <= number_of(ended_at) < _MAX_MOMENT:
        raise TypeError("not a time")
    return _Report(id, argv, report["pty"] is True, report["stdin"] is True, started_at, code, ended_at)


async def _read_report(guest: GuestRequests, id: str) -> _Report:
    if not _ID.fullmatch(id):
        raise ProcessNotFound(f"there is no process {id!r}")
    try:
        found = many(await guest.ask({"op": "kept", "id": id}), "processes", _parse_report)
    except GuestRefused as refused:
        raise BoxUnreachable(f"process {id}: {refused}") from None
    if len(found) != 1 or found[0].id != id:
        raise ProcessNotFound(f"there is no process {id}")
    return found[0]


async def _read_reports(guest: GuestRequests) -> list[_Report]:
    try:
        return many(await guest.ask({"op": "kept", "id": None}), "processes", _parse_report)
    except GuestRefused as refused:
        raise BoxUnreachable(f"the processes of box {guest.box} cannot be listed: {refused}") from None


class KeptProcess(Process):
    """A spawned process: its output and its end are files in the box."""

    def __init__(self, guest: GuestRequests, report: _Report) -> None:
        self._guest = guest
        self.id = report.id
        self.argv = report.argv
        self.pty = report.pty
        self._has_stdin = report.stdin or report.pty

    def __repr__(self) -> str:
        return f"<Process {self.id} {self.argv[0]}>"

    # --- how it ended ---

    async def info(self) -> ProcessInfo:
        return await self.info_of(await _read_report(self._guest, self.id))

    async def info_of(self, report: _Report) -> ProcessInfo:
        """Returns what is known already, completed by asking whether the process runs."""
        state = ProcessState.EXITED
        if report.code is None and not await self._runs():
            report = await _read_report(self._guest, self.id)  # it may have ended meanwhile
            state = ProcessState.LOST if report.code is None else ProcessState.EXITED
        elif report.code is None:
            state = ProcessState.RUNNING
        # File times are coarse, and are those of the box's clock.
        ended_at = None if report.ended_at is None else max(report.started_at, report.ended_at)
        return ProcessInfo(report.id, report.argv, report.pty, state, report.code, report.started_at, ended_at)

    async def _runs(self) -> bool:
        try:
            await self._guest.ask({"op": "signal", "id": self.id, "number": 0, "looks": True})
        except GuestRefused:
            return False
        return True

    async def wait(self, timeout: float | None = None) -> int:
        async with time_limit(timeout):
            for pause in (*_AGAIN, None):
                try:
                    return await self._wait()
                except BoxUnreachable:
                    if pause is None:
                        raise
                await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def _wait(self) -> int:
        try:
            return number_in(await self._guest.ask({"op": "wait", "id": self.id}, seconds=None), "code")
        except GuestRefused:
            code = (await _read_report(self._guest, self.id)).code
            if code is None:
                raise ProcessLost(
                    f"process {self.id} ended with its box: its exit code is unknown", hint="its output is kept"
                ) from None
            return code

    # --- what it printed ---

    def _request(self, stream: StreamName, offset: int, length: int | None, *, follow: bool) -> dict[str, Any]:
        if stream not in ("stdout", "stderr"):
            raise InvalidSpec(f"a process has no stream {stream!r}: use stdout or stderr")
        if offset < 0 or (length is not None and length < 0):
            raise InvalidSpec("offset and limit cannot be negative")
        name = "stdout" if self.pty and stream == "stdout" else stream
        return {"op": "output", "id": self.id, "stream": name, "offset": offset, "length": length, "follow": follow}

    async def read(self, stream: StreamName = "stdout", offset: int = 0, limit: int = 1 << 20) -> bytes:
        request = self._request(stream, offset, min(limit, _MAX_READ), follow=False)
        return b"".join([data async for data in self._pieces(request)])

    async def _pieces(self, request: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        left = request["length"]
        try:
            with await self._guest.call(request) as call:
                while data := await call.streams[0].read(_PIECE):
                    if left is not None and (left := left - len(data)) < 0:
                        raise BoxUnreachable(f"box {self._guest.box} sent more than was requested")
                    yield data
                await call.answer()
        except GuestRefused as refused:
            if refused.number == errno.ENOENT:
                raise ProcessNotFound(f"the output of process {self.id} is gone") from None
            raise BoxUnreachable(f"the output of process {self.id} cannot be read: {refused}") from None

    async def output(self, stream: StreamName = "stdout", offset: int = 0) -> AsyncGenerator[Chunk, None]:
        failed = 0
        while True:
            request = self._request(stream, offset, None, follow=True)
            try:
                async with contextlib.aclosing(self._pieces(request)) as pieces:
                    async for data in pieces:
                        failed = 0
                        yield Chunk(offset, data)
                        offset += len(data)
                return
            except BoxUnreachable:
                if failed >= len(_AGAIN):
                    raise
            await asyncio.sleep(_AGAIN[failed])
            failed += 1

    # --- what it is told ---

    async def _send_request(self, operation: str, **more: object) -> None:
        try:
            await self._guest.ask({"op": operation, "id": self.id, **more})
        except GuestRefused as refused:
            raise cannot_tell(refused, self.id) from None

    async def write(self, data: bytes) -> None:
        self._check_stdin()
        with await self._guest.call({"op": "stdin", "id": self.id}) as call:
            with contextlib.suppress(BrokenPipeError, BoxUnreachable):  # the answer has the reason
                await call.streams[0].write(data)
            call.streams[0].finish()
            try:
                await call.answer(None)
            except GuestRefused as refused:
                raise cannot_tell(refused, self.id) from None

    async def close_stdin(self) -> None:
        self._check_stdin()
        with contextlib.suppress(BoxConflict):
            await self._send_request("close_stdin")

    def _check_stdin(self) -> None:
        if not self._has_stdin:
            raise Unsupported(f"process {self.id} has no stdin: spawn it with stdin=True, or with a pty")

    async def signal(self, number: int) -> None:
        if not 0 <= number <= 64:
            raise InvalidSpec(f"there is no signal {number}")
        with contextlib.suppress(BoxConflict):
            await self._send_request("signal", number=number)

    async def resize(self, rows: int, columns: int) -> None:
        check_terminal(rows, columns)
        await self._send_request("resize", rows=rows, columns=columns)
