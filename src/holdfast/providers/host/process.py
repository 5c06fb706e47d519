"""Processes of a box whose guest passes descriptors. Exec, spawn and channel use pipes and files of the host."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import stat
import sys
import termios
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.api.box.process import (
    MAX_OUTPUT,
    Channel,
    Chunk,
    Completed,
    Process,
    ProcessInfo,
    ProcessState,
    Sink,
    Stream,
)
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
    number_in,
    start_request,
)
from holdfast.providers.host.disk.data_dir import write_whole
from holdfast.providers.host.guest_client import DEFAULT_SECONDS, Call, GuestClient
from holdfast.providers.host.inotify import FileWatch
from holdfast.providers.pipes import Pipe, Terminal
from holdfast.time_limit import time_limit

_FOR_ANYBODY: Final = 0o666
"""The mode of pipes and output files. They are reachable only by descriptor, or through a folder closed to other
users."""
_PIECE: Final = 1 << 18
_TURNS: Final = 8
"""Pieces of a stream that are read before other tasks run."""
_LOOK_SECONDS: Final = 1.0
"""How often a follower checks that the box is alive. New output is announced by inotify."""
_ID: Final = re.compile(r"p-[0-9a-z]{5,40}")


class Drain:
    """Reads one stream of a command into a sink or into memory. After the command has ended, it reads what is available
    and stops, because processes that the command left behind may keep the stream open forever.
    """

    def __init__(self, descriptor: int, sink: Sink | None, limit: int) -> None:
        self._descriptor = descriptor
        self._sink = sink
        self.kept = Collected(limit)
        self._ended = False
        self._waiting: asyncio.Future[None] | None = None
        pipe = Pipe(descriptor)
        pipe.widen()

    def end(self) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        watching = False
        turns = 0
        left: int | None = None
        try:
            while left is None or left > 0:
                if self._ended and left is None:  # only what is available now: another process may keep printing
                    left = _waiting_bytes(self._descriptor)
                    continue
                try:
                    data = os.read(self._descriptor, _PIECE)
                except BlockingIOError:
                    if self._ended:
                        return
                    self._waiting = loop.create_future()
                    if not watching:
                        loop.add_reader(self._descriptor, self._wake)
                        watching = True
                    await self._waiting
                    continue
                if not data:
                    return
                if left is not None:
                    left -= len(data)
                if self._sink is None:
                    self.kept.add(data)
                elif (taking := self._sink(data)) is not None:
                    if watching:  # otherwise the loop would report the stream again and again while the sink is slow
                        loop.remove_reader(self._descriptor)
                        watching = False
                    await taking
                turns += 1
                if turns % _TURNS == 0:
                    await asyncio.sleep(0)  # let other tasks run
        finally:
            if watching:
                loop.remove_reader(self._descriptor)

    # --- without a sink, by who waits for other things too ---

    def fileno(self) -> int:
        return self._descriptor

    def gather(self) -> bool:
        """Store what is available. Returns False at the end of the stream."""
        for _ in range(_TURNS):
            try:
                data = os.read(self._descriptor, _PIECE)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.kept.add(data)
        return True

    def gather_rest(self) -> None:
        """Store what is available now. Another process may keep printing for ever."""
        left = _waiting_bytes(self._descriptor)
        while left > 0 and (data := os.read(self._descriptor, min(left, _PIECE))):
            self.kept.add(data)
            left -= len(data)

    def has_writers(self) -> bool:
        """Whether the stream may still be written to. What it holds now is lost."""
        try:
            return os.read(self._descriptor, _PIECE) != b""
        except BlockingIOError:
            return True

    def close(self) -> None:
        os.close(self._descriptor)


def _waiting_bytes(descriptor: int) -> int:
    count = bytearray(4)
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)


def _pipe(other_user: bool) -> tuple[int, int]:
    """Create a pipe that processes of a box can reopen by name (/dev/stdout), whatever user they run as."""
    read, write = os.pipe2(os.O_CLOEXEC)
    if other_user:
        os.fchmod(write, _FOR_ANYBODY)
    return read, write


async def run_command(
    guest: GuestClient,
    request: dict[str, Any],
    other_user: bool,
    *,
    stdin: bytes | AsyncIterable[bytes],
    timeout: float | None,
    on_stdout: Sink | None,
    on_stderr: Sink | None,
    max_output: int,
) -> Completed:
    """Run a command, from creating the pipes to its exit code."""
    input_read, input_write = _pipe(other_user)
    output_read, output_write = _pipe(other_user)
    errors_read, errors_write = _pipe(other_user)
    feeder = Pipe(input_write)
    output = Drain(output_read, on_stdout, max_output)
    errors = Drain(errors_read, on_stderr, max_output)
    call: Call | None = None
    try:
        try:
            call = await guest.call(request, (input_read, output_write, errors_write))
        finally:
            for each in (input_read, output_write, errors_write):
                os.close(each)
        if not stdin:
            feeder.close()
        try:
            async with time_limit(timeout):
                if stdin or on_stdout is not None or on_stderr is not None:
                    code = await _attend(call, output, errors, feeder, stdin)
                else:
                    code = await _watch_over(call, output, errors)
        except TimeoutError:
            raise ExecTimeout(
                f"{request['argv'][0]} did not end within {timeout} s and was killed",
                stdout=bytes(output.kept),
                stderr=bytes(errors.kept),
            ) from None
        except GuestRefused as refused:
            raise cannot_execute(refused, request["argv"], request["cwd"]) from None
        left = [each.fileno() for each in (output, errors) if each.has_writers()]
        if left:  # by what the command left in the background, whose next line would end it if nobody read it
            guest.tell({"op": "discard", "looks": True}, left)
        return Completed(code, bytes(output.kept), bytes(errors.kept))
    finally:
        if call is not None:
            call.close()
        feeder.close()
        output.close()
        errors.close()


async def _watch_over(call: Call, output: Drain, errors: Drain) -> int:
    """Store the output of a command and wait for its end, with fewer objects than `_attend`: for commands without input
    and sinks."""
    loop = asyncio.get_running_loop()
    watched = {call.fileno(), output.fileno(), errors.fileno()}
    ringing: asyncio.Future[None] = loop.create_future()

    def ring() -> None:
        if not ringing.done():
            ringing.set_result(None)

    for each in watched:
        loop.add_reader(each, ring)
    try:
        while (answer := call.done_now()) is None:
            await ringing
            ringing = loop.create_future()
            for stream in (output, errors):
                if stream.fileno() in watched and not stream.gather():
                    loop.remove_reader(stream.fileno())
                    watched.discard(stream.fileno())
    finally:
        for each in watched:
            loop.remove_reader(each)
    for stream in (output, errors):
        stream.gather_rest()
    return number_in(answer, "code")


async def _attend(call: Call, output: Drain, errors: Drain, feeder: Pipe, stdin: bytes | AsyncIterable[bytes]) -> int:
    """Feed, read and wait concurrently. The first failure ends all."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(output.run()), asyncio.create_task(errors.run())]
    feeding = asyncio.create_task(_feed(feeder, stdin)) if stdin else None
    ending: asyncio.Task[int] = asyncio.create_task(_exit_code(call))
    try:
        waiting: set[asyncio.Task[Any]] = {*tasks, ending, *([feeding] if feeding is not None else [])}
        while not ending.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        output.end()
        errors.end()
        for task in tasks:
            await task
        return ending.result()
    finally:
        everything = [*tasks, ending, *([feeding] if feeding is not None else [])]
        for task in everything:
            task.cancel()
        await asyncio.gather(*everything, return_exceptions=True)


async def _exit_code(call: Call) -> int:
    return number_in(await call.done(), "code")


async def _feed(pipe: Pipe, data: bytes | AsyncIterable[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the command need not read all of it
        if isinstance(data, (bytes, bytearray, memoryview)):
            await pipe.write(bytes(data))
        else:
            async for piece in data:
                await pipe.write(piece)
    pipe.close()


class PipeChannel(Channel):
    """Stdin and stdout of a process as two pipes. The process ends with the connection to the guest."""

    def __init__(self, call: Call, reader: Pipe, writer: Pipe, errors: Pipe) -> None:
        self._call = call
        self._reader = reader
        self._writer = writer
        self._errors = errors
        self._tail = Tail()
        self._listening = asyncio.create_task(self._listen())
        self._ending = asyncio.create_task(_exit_code(call))

    @classmethod
    async def open(cls, guest: GuestClient, request: dict[str, Any], other_user: bool) -> PipeChannel:
        """Returns once the command runs."""
        input_read, input_write = _pipe(other_user)
        output_read, output_write = _pipe(other_user)
        errors_read, errors_write = _pipe(other_user)
        call: Call | None = None
        try:
            try:
                call = await guest.call({**request, "acknowledge": True}, (input_read, output_write, errors_write))
            finally:
                for each in (input_read, output_write, errors_write):
                    os.close(each)
            async with time_limit(DEFAULT_SECONDS):
                await call.done()
        except BaseException as error:
            for each in (input_write, output_read, errors_read):
                os.close(each)
            if call is not None:
                call.close()
            if isinstance(error, GuestRefused):
                raise cannot_execute(error, request["argv"], request["cwd"]) from None
            if isinstance(error, TimeoutError):
                raise BoxUnreachable("the guest did not answer in time") from None
            raise
        return cls(call, Pipe(output_read), Pipe(input_write), Pipe(errors_read))

    async def _listen(self) -> None:
        while data := await self._errors.read(self._tail.limit):
            self._tail.add(data)

    @property
    def stderr(self) -> bytes:
        return bytes(self._tail)

    async def read(self, limit: int = 1 << 16) -> bytes:
        return await self._reader.read(limit)

    async def write(self, data: bytes) -> None:
        try:
            await self._writer.write(data)
        except BrokenPipeError:
            raise BoxConflict("the process no longer reads its stdin") from None

    async def close_write(self) -> None:
        self._writer.close()

    async def wait(self) -> int:
        return await asyncio.shield(self._ending)

    async def close(self) -> None:
        self._call.close()
        for task in (self._listening, self._ending):
            task.cancel()
        try:
            await asyncio.gather(self._listening, self._ending, return_exceptions=True)
        finally:
            for pipe in (self._reader, self._writer, self._errors):
                pipe.close()


class KeptProcess(Process):
    """A spawned process. The box writes its output and its end into files on the host."""

    def __init__(self, guest: GuestClient, watch: FileWatch, folder: Path, gone: Callable[[], bool]) -> None:
        self._guest = guest
        self._watch = watch
        self._folder = folder
        self._gone = gone
        self._stdin: Pipe | Terminal | None = None
        try:
            description = json.loads((folder / "process.json").read_bytes())
        except FileNotFoundError:
            raise ProcessNotFound(f"there is no process {folder.name}") from None
        self.id = folder.name
        self.argv = tuple(description["argv"])
        self.pty = description["pty"]
        self._started_at = description["startedAt"]
        self._has_stdin = description["stdin"] or description["pty"]

    def __repr__(self) -> str:
        return f"<Process {self.id} {self.argv[0]}>"

    # --- how it ended ---

    def _exit_code(self) -> int | None:
        try:
            text = (self._folder / "exit").read_bytes()
        except FileNotFoundError:
            raise BoxGone(f"process {self.id} is gone with its box") from None
        return int(text) if text.endswith(b"\n") and text.strip().lstrip(b"-").isdigit() else None

    async def _lost(self) -> bool:
        """Returns whether the box is gone or stopped, so that the end of the process will never be known."""
        try:
            await self._guest.ask({"op": "signal", "id": self.id, "number": 0})
        except GuestRefused:
            return self._exit_code() is None
        except BoxStopped:
            return self._exit_code() is None
        except BoxUnreachable:
            # A guest that is killed during the request closes the connection.
            return not self._guest.alive() and self._exit_code() is None
        return False

    async def info(self) -> ProcessInfo:
        code = self._exit_code()
        state, ended_at = ProcessState.EXITED, None
        if code is None:
            state = ProcessState.LOST if await self._lost() else ProcessState.RUNNING
            code = self._exit_code()
            if code is not None:
                state = ProcessState.EXITED
        if state is ProcessState.EXITED:
            # File times are coarse: they may be earlier than the clock that recorded the start.
            ended_at = max(self._started_at, (self._folder / "exit").stat().st_mtime_ns // 1_000_000)
        return ProcessInfo(self.id, self.argv, self.pty, state, code, self._started_at, ended_at)

    async def wait(self, timeout: float | None = None) -> int:
        async with time_limit(timeout):
            while (code := self._exit_code()) is None:
                try:
                    with await self._guest.call({"op": "wait", "id": self.id}) as call:
                        answer, received = await call.answer()
                        for each in received:
                            os.close(each)
                        return number_in(answer, "code")
                except (GuestRefused, BoxStopped, BoxUnreachable):
                    if self._exit_code() is None and await self._lost():
                        raise ProcessLost(
                            f"process {self.id} ended with its box: its exit code is unknown",
                            hint="its output is kept",
                        ) from None
                    await asyncio.sleep(0.02)
            return code

    # --- what it printed ---

    def _path(self, stream: Stream) -> Path:
        if stream not in ("stdout", "stderr"):
            raise InvalidSpec(f"a process has no stream {stream!r}: use stdout or stderr")
        return self._folder / stream

    async def read(self, stream: Stream = "stdout", offset: int = 0, limit: int = 1 << 20) -> bytes:
        if offset < 0 or limit < 0:
            raise InvalidSpec("offset and limit cannot be negative")
        try:
            with self._path(stream).open("rb") as file:
                return os.pread(file.fileno(), min(limit, 64 * _PIECE), offset)
        except FileNotFoundError:
            raise BoxGone(f"the output of process {self.id} is gone with its box") from None

    async def output(self, stream: Stream = "stdout", offset: int = 0) -> AsyncIterator[Chunk]:
        path = self._path(stream)
        with self._watch.changes(path, self._folder / "exit") as change:
            ended = False
            while True:
                change.clear()
                ended = ended or self._exit_code() is not None
                data = await self.read(stream, offset, _PIECE)
                if data[:1] == b"\0" and (kept := _next_data(path, offset)) > offset:
                    offset = kept  # a terminal has forgotten what was before
                elif data:
                    yield Chunk(offset, data)
                    offset += len(data)
                    await asyncio.sleep(0)
                elif ended:
                    return
                else:
                    await change.wait(_LOOK_SECONDS)
                    if self._gone():
                        raise BoxGone(f"process {self.id} is gone with its box")
                    if self._exit_code() is None and not self._guest.alive():
                        ended = True  # lost: no more output will come

    # --- what it is told ---

    async def _ask(self, operation: str, **more: object) -> tuple[dict[str, Any], list[int]]:
        try:
            return await self._guest.ask_descriptors({"op": operation, "id": self.id, **more})
        except GuestRefused as refused:
            raise cannot_tell(refused, self.id) from None

    async def _request(self, operation: str, **more: object) -> None:
        """Send a request whose answer has no descriptors."""
        _, received = await self._ask(operation, **more)
        for each in received:
            os.close(each)

    async def write(self, data: bytes) -> None:
        if not self._has_stdin:
            raise Unsupported(f"process {self.id} has no stdin: spawn it with stdin=True, or with a pty")
        if self._stdin is None:
            _, received = await self._ask("stdin")
            if len(received) != 1:
                for each in received:
                    os.close(each)
                raise BoxUnreachable("the guest did not hand out a stdin")
            self._stdin = _own_stdin(received[0])
        pipe = self._stdin
        try:
            await pipe.write(data)
        except OSError:
            self._drop_stdin()
            raise BoxConflict(f"process {self.id} no longer reads its stdin") from None
        finally:
            # Closed as soon as possible: while our end is open, the process does not see the end of its input.
            self._drop_stdin()

    def _drop_stdin(self) -> None:
        if self._stdin is not None:
            self._stdin.close()
            self._stdin = None

    async def close_stdin(self) -> None:
        if not self._has_stdin:
            raise Unsupported(f"process {self.id} has no stdin: spawn it with stdin=True, or with a pty")
        self._drop_stdin()
        with contextlib.suppress(BoxConflict):
            await self._request("close_stdin")

    async def signal(self, number: int) -> None:
        if not 0 <= number <= 64:
            raise InvalidSpec(f"there is no signal {number}")
        with contextlib.suppress(BoxConflict, BoxStopped):
            await self._request("signal", number=number)

    async def resize(self, rows: int, columns: int) -> None:
        check_terminal(rows, columns)
        await self._request("resize", rows=rows, columns=columns)


def _next_data(path: Path, offset: int) -> int:
    """Returns the offset itself, or where the hole ends that it is in."""
    with path.open("rb") as file:
        try:
            return os.lseek(file.fileno(), offset, os.SEEK_DATA)
        except OSError:
            return offset  # a file system without holes


def _own_stdin(descriptor: int) -> Pipe | Terminal:
    """Returns the stdin that the guest passed, opened so that the guest cannot make us block. Takes over the
    descriptor."""
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISCHR(kind) and os.isatty(descriptor):
        return Terminal(descriptor)
    try:
        if not stat.S_ISFIFO(kind):
            raise BoxUnreachable("the guest passed a descriptor that is not a stdin")
        # Reopening gives it separate flags. If that fails, no process reads it any more.
        return Pipe(os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        raise BoxConflict("the process no longer reads its stdin") from None
    finally:
        os.close(descriptor)


class GuestProcesses:
    """Starts processes in a box. Each spawned process has a folder."""

    def __init__(self, guest: GuestClient, watch: FileWatch, box_folder: Path, other_user: bool) -> None:
        self._guest = guest
        self._watch = watch
        self._box = box_folder
        self._other_user = other_user

    @property
    def _folder(self) -> Path:
        return self._box / "processes"

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
        return await run_command(
            self._guest,
            start_request("exec", argv, env, cwd, looks=probe),
            self._other_user,
            stdin=stdin,
            timeout=timeout,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            max_output=max_output,
        )

    async def channel(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> PipeChannel:
        return await PipeChannel.open(self._guest, start_request("exec", argv, env, cwd), self._other_user)

    async def get(self, id: str) -> KeptProcess:
        return self._get(id)

    def _get(self, id: str) -> KeptProcess:
        if not _ID.fullmatch(id):
            raise ProcessNotFound(f"there is no process {id!r}")
        return KeptProcess(self._guest, self._watch, self._folder / id, lambda: not self._box.exists())

    async def all(self) -> list[ProcessInfo]:
        found = []
        try:
            names = sorted(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            raise BoxGone(f"box {self._box.name} is gone") from None
        for name in names:
            with contextlib.suppress(ProcessNotFound):
                found.append(self._get(name))
        return [await process.info() for process in found]

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
        request = start_request("spawn", argv, env, cwd, id=id, stdin=stdin, pty=pty, tree=tree)
        folder = self._folder / id
        try:
            folder.mkdir(mode=0o700)
        except FileNotFoundError:
            raise BoxGone(f"box {self._box.name} is gone") from None
        descriptors = []
        try:
            for name in ("stdout", "stderr", "exit"):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                descriptors.append(os.open(folder / name, flags, 0o600))
                if self._other_user:
                    os.fchmod(descriptors[-1], _FOR_ANYBODY)
            description = {"argv": request["argv"], "pty": size is not None, "stdin": stdin, "startedAt": now_ms()}
            write_whole(folder / "process.json", description)
            await self._guest.ask(request, descriptors)
        except BaseException as error:
            for name in ("stdout", "stderr", "exit", "process.json"):
                (folder / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                folder.rmdir()
            if isinstance(error, GuestRefused):
                raise cannot_execute(error, argv, cwd) from None
            raise
        finally:
            for each in descriptors:
                os.close(each)
        return self._get(id)
