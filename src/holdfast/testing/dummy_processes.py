"""Processes of a dummy box: commands of the host, and records of spawned ones in the box's folder."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from inspect import isawaitable
from pathlib import Path
from typing import Any, Final

from holdfast.api.box.process import (
    Channel,
    Chunk,
    Completed,
    Connection,
    Process,
    ProcessInfo,
    ProcessState,
    Sink,
    Stream,
)
from holdfast.api.errors.boxes import (
    BoxConflict,
    CannotExecute,
    CommandNotFound,
    ConnectRefused,
    ExecTimeout,
    InvalidSpec,
    OutputTooLarge,
    ProcessLost,
    ProcessNotFound,
)
from holdfast.boxes.shielded import to_the_end
from holdfast.time_limit import time_limit

_STILL_SECONDS: Final = 2.0
_PIECE: Final = 1 << 16
_SUPERVISOR: Final = Path(__file__).with_name("dummy_supervisor.py")
_KEPT_STDERR: Final = 64 * 1024


def check_argv(argv: Sequence[str]) -> list[str]:
    sensible = not isinstance(argv, str) and all(isinstance(each, str) and "\0" not in each for each in argv)
    if not sensible or not argv or not argv[0]:
        raise InvalidSpec(f"argv {argv!r}: a list of words, the program first")
    return list(argv)


def check_env(env: Mapping[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise InvalidSpec(f"env {name!r}: a name, and a value without a zero byte")
    return dict(env)


class _Watched(asyncio.subprocess.SubprocessStreamProtocol):
    """Reports the end of a command, even if a child that it left behind keeps its pipes open."""

    def __init__(self) -> None:
        super().__init__(limit=_PIECE, loop=asyncio.get_running_loop())
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class Command:
    """A running command with pipes."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: _Watched, box: Path) -> None:
        self._transport = transport
        self._protocol = protocol
        self._record = box / "commands" / str(transport.get_pid())
        write_record(self._record)
        stdin, stdout, stderr = protocol.stdin, protocol.stdout, protocol.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr

    async def wait(self) -> int:
        """Returns the exit code. The pipes may still contain output."""
        await self._protocol.exited.wait()
        code = self._transport.get_returncode()
        assert code is not None
        return code if code >= 0 else 128 - code

    async def end(self) -> None:
        """Kill the command and its group if it still runs, and close the pipes."""
        if self._transport.get_returncode() is None:
            kill_group(self._transport.get_pid())
            await self._protocol.exited.wait()
        self._transport.close()
        self._record.unlink(missing_ok=True)


def write_record(record: Path) -> None:
    """Record a command, so that any process that stops the box also ends its commands."""
    with contextlib.suppress(FileNotFoundError):  # the box was removed
        record.parent.mkdir(exist_ok=True)
        record.write_text(began(int(record.name)))


def began(pid: int) -> str:
    """Returns when a process started. Process ids are reused."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return "never"


def _cannot_start(program: str, number: int | None, *, folder_missing: bool) -> CannotExecute:
    kind = CommandNotFound if number == errno.ENOENT and not folder_missing else CannotExecute
    return kind(f"cannot start {program}: {os.strerror(number or errno.EIO).lower()}")


async def start(box: Path, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> Command:
    words = check_argv(argv)
    pipe = asyncio.subprocess.PIPE
    try:
        transport, protocol = await asyncio.get_running_loop().subprocess_exec(
            _Watched, *words, env=check_env(env), cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
    except OSError as error:
        raise _cannot_start(words[0], error.errno, folder_missing=not await asyncio.to_thread(cwd.is_dir)) from None
    return Command(transport, protocol, box)


def kill_group(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


async def run(
    command: Command,
    name: str,
    timeout: float | None,
    stdin: bytes | AsyncIterable[bytes],
    on_stdout: Sink | None,
    on_stderr: Sink | None,
    max_output: int,
) -> Completed:
    kept: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    reads = 0
    sinks = 0

    async def drain(stream: str, reader: asyncio.StreamReader, sink: Sink | None) -> None:
        nonlocal reads, sinks
        while piece := await reader.read(_PIECE):
            reads += 1
            if sink is not None:
                sinks += 1
                if isawaitable(taken := sink(piece)):
                    await taken
                sinks -= 1
            elif len(kept[stream]) + len(piece) > max_output:
                raise OutputTooLarge(f"more than {max_output} bytes of {stream}", hint="take it with a sink")
            else:
                kept[stream] += piece

    async def wait(drains: Sequence[asyncio.Task[None]]) -> int:
        code = await command.wait()
        seen = -1
        # A child of the command may keep its pipes open. Everything that the command itself printed has arrived.
        while not all(each.done() for each in drains) and (sinks or seen != reads):
            seen = reads
            await asyncio.wait(drains, timeout=0.05)
        for each in drains:
            each.cancel()
        return code

    limit = time_limit(timeout)
    try:
        async with limit, asyncio.TaskGroup() as group:
            feeding = group.create_task(_feed(command.stdin, stdin))
            out = group.create_task(drain("stdout", command.stdout, on_stdout))
            err = group.create_task(drain("stderr", command.stderr, on_stderr))
            code = await wait([out, err])
            feeding.cancel()
        return Completed(code, bytes(kept["stdout"]), bytes(kept["stderr"]))
    except TimeoutError:
        if not limit.expired():
            raise
        raise ExecTimeout(
            f"{name} did not end within {timeout:g} s and was killed",
            stdout=bytes(kept["stdout"]),
            stderr=bytes(kept["stderr"]),
        ) from None
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        await command.end()


async def _feed(writer: asyncio.StreamWriter, data: bytes | AsyncIterable[bytes]) -> None:
    with contextlib.suppress(ConnectionError, RuntimeError):  # uvloop raises RuntimeError for a closed pipe
        if isinstance(data, bytes):
            writer.write(data)
            await writer.drain()
        else:
            async for piece in data:
                writer.write(piece)
                await writer.drain()
        writer.close()


# --- spawned ---


async def spawn(
    folder: Path,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    stdin: bool,
    tree: bool,
    clock: Callable[[], int],
) -> DummyProcess:
    words = check_argv(argv)
    request = {"argv": words, "env": check_env(env), "cwd": str(cwd), "stdin": stdin, "tree": tree}
    request["started_at"] = clock()
    prepare(folder, request)
    report = await to_the_end(_supervise(folder))
    outcome = json.loads(report) if report else {"errno": errno.EIO}
    if "errno" in outcome:
        forget(folder)
        raise _cannot_start(words[0], outcome["errno"], folder_missing=not await asyncio.to_thread(cwd.is_dir))
    return DummyProcess.of(folder, clock)


async def _supervise(folder: Path) -> bytes:
    """Start a process and its supervisor. Returns the line that says how it went."""
    starting = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", str(_SUPERVISOR), str(folder), stdout=asyncio.subprocess.PIPE, env={}
    )
    report, _ = await starting.communicate()
    return report


def prepare(folder: Path, request: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "request.json").write_text(json.dumps(request))
    if request["stdin"]:
        os.mkfifo(folder / "stdin", 0o600)


def forget(folder: Path) -> None:
    for each in folder.iterdir():
        each.unlink()
    folder.rmdir()


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return document


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return False


def _commands(box: Path) -> list[int]:
    records = sorted((box / "commands").glob("*"))
    return [int(record.name) for record in records if read_text(record) == began(int(record.name))]


@contextlib.contextmanager
def held_still(box: Path) -> Iterator[None]:
    """Stop all commands and spawned processes of a box inside the block."""
    groups = set(_commands(box))
    for folder in (box / "processes").glob("*"):
        started = read_json(folder / "started.json")
        if started is not None and read_json(folder / "ended.json") is None:
            groups.add(started["pid"])
    try:
        for group in groups:
            kill_group(group, signal.SIGSTOP)
        deadline = time.monotonic() + _STILL_SECONDS
        while groups and _busy(groups) and time.monotonic() < deadline:
            time.sleep(0.001)
        yield
    finally:
        for group in groups:
            kill_group(group, signal.SIGCONT)


def _busy(groups: set[int]) -> bool:
    """Returns whether some process of these groups has not stopped yet."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            state, _, group = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:3]
            if int(group) in groups and state not in "TtZX":
                return True
    return False


async def end_everything(box: Path) -> None:
    """Kill every command and every spawned process of a box."""
    for pid in _commands(box):
        kill_group(pid)
    for folder in sorted((box / "processes").glob("*")):
        await end_process(folder)


def read_text(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


async def end_process(folder: Path) -> None:
    """Kill a spawned process with its supervisor, so that its end is not recorded."""
    started = read_json(folder / "started.json")
    if started is None or read_json(folder / "ended.json") is not None:
        return
    request = read_json(folder / "request.json")
    if request is None or not request["tree"]:  # otherwise it has children to end
        with contextlib.suppress(ProcessLookupError):
            os.kill(started["supervisor"], signal.SIGKILL)
    kill_group(started["pid"])
    for _ in range(1000):
        if not alive(started["supervisor"]) and not alive(started["pid"]):
            return
        await asyncio.sleep(0.002)


class DummyProcess(Process):
    def __init__(self, folder: Path, request: Mapping[str, Any]) -> None:
        self.id = folder.name
        self.argv = tuple(request["argv"])
        self.pty = False
        self._folder = folder
        self._request = request

    @classmethod
    def of(cls, folder: Path, clock: Callable[[], int]) -> DummyProcess:
        """Raises `ProcessNotFound`."""
        request = read_json(folder / "request.json")
        if request is None:
            raise ProcessNotFound(f"there is no process {folder.name} in this box")
        return cls(folder, request)

    def _info(self) -> ProcessInfo:
        started = read_json(self._folder / "started.json")
        lives = started is not None and alive(started["supervisor"])
        ended = read_json(
            self._folder / "ended.json"
        )  # read after the state of the supervisor, which writes this and then ends
        code = None if ended is None else ended["code"]
        state = ProcessState.EXITED if ended else ProcessState.RUNNING if lives else ProcessState.LOST
        at = None if state is ProcessState.RUNNING else self._ended_at()
        return ProcessInfo(self.id, self.argv, self.pty, state, code, self._request["started_at"], at)

    def _ended_at(self) -> int:
        for name in ("ended.json", "stdout", "request.json"):
            if (self._folder / name).exists():
                return int((self._folder / name).stat().st_mtime * 1000)
        return int(self._request["started_at"])

    async def info(self) -> ProcessInfo:
        return self._info()

    async def read(self, stream: Stream = "stdout", offset: int = 0, limit: int = 1 << 20) -> bytes:
        return self._read(stream, offset, limit)

    def _read(self, stream: Stream, offset: int, limit: int) -> bytes:
        if stream not in ("stdout", "stderr"):
            raise InvalidSpec(f"stream {stream!r}: stdout or stderr")
        try:
            with (self._folder / stream).open("rb") as file:
                file.seek(offset)
                return file.read(limit)
        except FileNotFoundError:
            return b""

    async def output(self, stream: Stream = "stdout", offset: int = 0) -> AsyncIterator[Chunk]:
        wait = 0.001
        while True:
            ended = self._info().state is not ProcessState.RUNNING
            if piece := self._read(stream, offset, 1 << 20):
                yield Chunk(offset, piece)
                offset += len(piece)
                wait = 0.001
            elif ended:
                return
            else:
                await asyncio.sleep(wait)
                wait = min(wait * 2, 0.05)

    async def wait(self, timeout: float | None = None) -> int:
        wait = 0.001
        async with time_limit(timeout):
            while (info := self._info()).state is ProcessState.RUNNING:
                await asyncio.sleep(wait)
                wait = min(wait * 2, 0.05)
        if info.exit_code is None:
            raise ProcessLost(f"process {self.id} ended with its box: nobody saw how")
        return info.exit_code

    async def write(self, data: bytes) -> None:
        if not self._request["stdin"]:
            raise BoxConflict(f"process {self.id} was spawned without stdin", hint="spawn it with stdin=True")
        if self._info().state is not ProcessState.RUNNING:
            return
        try:
            pipe = os.open(self._folder / "stdin", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return  # it has closed its stdin
        try:
            left = memoryview(data)
            while left and self._info().state is ProcessState.RUNNING:
                try:
                    left = left[os.write(pipe, left) :]
                except BlockingIOError:
                    await asyncio.sleep(0.002)
                except BrokenPipeError:
                    return
        finally:
            os.close(pipe)

    async def close_stdin(self) -> None:
        started = read_json(self._folder / "started.json")
        closed = self._folder / "stdin.closed"
        if self._request["stdin"] and started is not None and mark(closed) and alive(started["supervisor"]):
            os.kill(started["supervisor"], signal.SIGUSR1)

    async def signal(self, number: int) -> None:
        started = read_json(self._folder / "started.json")
        if started is not None and self._info().state is ProcessState.RUNNING:
            kill_group(started["pid"], number)

    async def resize(self, rows: int, columns: int) -> None:
        raise BoxConflict(f"process {self.id} has no terminal")


def mark(path: Path) -> bool:
    """Returns whether we were the first."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


# --- channels ---


class DummyConnection(Connection):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, closed: Callable[[], None]) -> None:
        self._reader = reader
        self._writer = writer
        self._closed: Callable[[], None] | None = closed

    async def read(self, limit: int = 1 << 16) -> bytes:
        try:
            return await self._reader.read(limit)
        except ConnectionError:
            return b""

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def close_write(self) -> None:
        if self._writer.can_write_eof():
            self._writer.write_eof()

    async def close(self) -> None:
        closed, self._closed = self._closed, None
        if closed is None:
            return
        try:
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()
        finally:
            closed()


async def connect(port: int, closed: Callable[[], None]) -> Connection:
    try:
        async with time_limit(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except BaseException as error:
        closed()
        if isinstance(error, OSError):
            raise ConnectRefused(f"nothing listens on port {port} in the box") from None
        raise
    return DummyConnection(reader, writer, closed)


class DummyChannel(Channel):
    def __init__(self, command: Command, closed: Callable[[], None]) -> None:
        self._command = command
        self._closed: Callable[[], None] | None = closed
        self._stderr = bytearray()
        self._collecting = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        while piece := await self._command.stderr.read(_PIECE):
            self._stderr = (self._stderr + piece)[-_KEPT_STDERR:]

    @property
    def stderr(self) -> bytes:
        return bytes(self._stderr)

    async def read(self, limit: int = 1 << 16) -> bytes:
        return await self._command.stdout.read(limit)

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self._command.stdin.write(data)
            await self._command.stdin.drain()

    async def close_write(self) -> None:
        self._command.stdin.close()

    async def wait(self) -> int:
        code = await self._command.wait()
        await asyncio.wait([self._collecting], timeout=1)
        return code

    async def close(self) -> None:
        closed, self._closed = self._closed, None
        if closed is None:
            return
        try:
            await self._command.end()
            self._collecting.cancel()
            await asyncio.gather(self._collecting, return_exceptions=True)
        finally:
            closed()


async def open_channel(starting: Awaitable[Command], closed: Callable[[], None]) -> DummyChannel:
    try:
        command = await starting
    except BaseException:
        closed()
        raise
    return DummyChannel(command, closed)
