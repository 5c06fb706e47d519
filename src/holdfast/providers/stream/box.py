"""A box at the end of a stream: all of the contract that is done by asking its guest. Its life is its provider's."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.boxes.box import Box, BoxInfo, Metrics, Preview, Step
from holdfast.boxes.errors import BoxError, BoxUnreachable, ConnectRefused, InvalidSpec, Unsupported
from holdfast.boxes.process import MAX_OUTPUT, Channel, Completed, Connection, Process, ProcessInfo, Sink
from holdfast.providers.answers import GuestRefused, number_in, optional_number_in
from holdfast.providers.stream.files import StreamFiles
from holdfast.providers.stream.link import Call, StreamLink, WakingLink
from holdfast.providers.stream.process import StreamProcesses

_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What a provider knows of a box without asking it. None where it cannot tell."""

    memory: int | None = None
    cpu_seconds: float | None = None
    disk: int | None = None
    """Where that is quickly found out; `StreamBox.disk` is for where it is not."""
    out_of_memory: int | None = None
    sent: int | None = None
    received: int | None = None
    outgoing: int | None = None


class PortConnection(Connection):
    """A connection in the box, carried over the stream."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def read(self, limit: int = 1 << 16) -> bytes:
        return await self._call.streams[0].read(limit)

    async def write(self, data: bytes) -> None:
        try:
            await self._call.streams[0].write(data)
        except BrokenPipeError:
            raise BoxUnreachable("the box closed the connection") from None

    async def close_write(self) -> None:
        self._call.streams[0].finish()

    async def close(self) -> None:
        self._call.close()


class StreamBox(Box):
    """A provider's boxes are subclasses: they fill in `power`, `stop`, `start`, `delete`, `snapshot` and `fork`, and
    where they can `usage`, `pause` and `set_network`. The link is the provider's; a handle never closes it."""

    def __init__(
        self, info: BoxInfo, link: StreamLink, *, environment: Mapping[str, str], workdir: str | None = None
    ) -> None:
        """`environment` is what every command of the box gets, before that of its spec."""
        self.id = info.id
        self.info = info
        self.link = link
        self.environment = environment
        self.workdir = info.spec.workdir if workdir is None else workdir
        waking = WakingLink(link, self._wake)
        self.files = StreamFiles(waking, self.workdir)
        self._processes = StreamProcesses(waking)
        self._asking = waking

    async def _wake(self) -> bool:
        return self.wake is not None and await self.wake()

    # --- processes ---

    def _environment(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return {**self.environment, **self.spec.env, **(env or {})}

    def _folder(self, cwd: str | None) -> str:
        return self.workdir if cwd is None else cwd if cwd.startswith("/") else f"{self.workdir}/{cwd}"

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        stdin: bytes | AsyncIterable[bytes] = b"",
        on_stdout: Sink | None = None,
        on_stderr: Sink | None = None,
        max_output: int = MAX_OUTPUT,
    ) -> Completed:
        return await self._processes.exec(
            argv,
            self._environment(env),
            self._folder(cwd),
            stdin=stdin,
            timeout=timeout,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            max_output=max_output,
        )

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        pty: bool = False,
        rows: int = 24,
        columns: int = 80,
    ) -> Process:
        if pty:
            env = {"TERM": "xterm-256color", **(env or {})}
        size = (rows, columns) if pty else None
        return await self._processes.spawn(argv, self._environment(env), self._folder(cwd), stdin=stdin, size=size)

    async def process(self, id: str) -> Process:
        return await self._processes.get(id)

    async def processes(self) -> list[ProcessInfo]:
        return await self._processes.all()

    async def channel(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Channel:
        return await self._processes.channel(argv, self._environment(env), self._folder(cwd))

    # --- ports ---

    async def connect(self, port: int) -> Connection:
        if not 0 < port < 65536:
            raise InvalidSpec(f"there is no port {port}")
        call = await self._asking.call({"op": "connect", "port": port})
        try:
            await call.answer(_CONNECT_SECONDS)
        except GuestRefused:
            call.close()
            raise ConnectRefused(f"nothing listens on port {port} in box {self.id}") from None
        except BaseException:
            call.close()
            raise
        return PortConnection(call)

    async def preview(self, port: int) -> Preview:
        if not 0 < port < 65536:
            raise InvalidSpec(f"there is no port {port}")
        raise Unsupported(
            f"provider {self.info.provider} has no preview: the server has an address for each port of a box",
            hint="ask the server (holdfast box port), or use connect",
        )

    # --- looking at it ---

    async def usage(self) -> Usage:
        """What the provider knows of it, quickly found out."""
        return Usage()

    async def disk(self) -> int | None:
        """Bytes on disk, which may take long to find out."""
        return None

    async def metrics(self) -> Metrics:
        found = await self.activity()
        return found if found.disk is not None else replace(found, disk=await self.disk())

    async def activity(self) -> Metrics:
        try:
            answer = await self.link.ask({"op": "activity"})
        except GuestRefused as refused:
            raise BoxUnreachable(f"the guest of box {self.id} cannot say what it does: {refused}") from None
        usage = await self.usage()
        worked = optional_number_in(answer, "cpu")
        return Metrics(
            number_in(answer, "processes"),
            number_in(answer, "connections"),
            number_in(answer, "idle") / 1000,
            memory=usage.memory,
            cpu_seconds=usage.cpu_seconds,
            disk=usage.disk,
            out_of_memory=usage.out_of_memory,
            listening=optional_number_in(answer, "listening"),
            sent=usage.sent,
            received=usage.received,
            outgoing=usage.outgoing,
            work_seconds=None if worked is None else worked / 1000,
        )

    async def ping(self) -> list[Step]:
        steps: list[Step] = []
        for name, action in (
            ("box", self._ping_box),
            ("stream", self._ping_stream),
            ("guest", self._ping_guest),
            ("run a command", self._ping_command),
            ("workdir", self._ping_workdir),
        ):
            steps.append(await _step(name, action, f"holdfast box diagnose {self.id}"))
            if not steps[-1].ok:
                break
        return steps

    async def _ping_box(self) -> str:
        return (await self.power()).value

    async def _ping_stream(self) -> str:
        known = self.link.alive
        await self.link.open()
        return "open" if known else "dialled"

    async def _ping_guest(self) -> str:
        told = await self.link.ask({"op": "ping"})
        return f"python {str(told.get('python'))[:20]}"

    async def _ping_command(self) -> str:
        looking = StreamProcesses(self.link)  # which wakes nobody
        done = await looking.exec(["true"], self._environment(None), "/", timeout=10.0, looks=True)
        return f"exit code {done.exit_code}"

    async def _ping_workdir(self) -> str:
        await self.link.ask_path({"op": "stat", "path": self.workdir, "cwd": "/", "looks": True}, self.workdir)
        return self.workdir

    async def close(self) -> None:
        return None


async def _step(name: str, action: Callable[[], Awaitable[str]], otherwise: str) -> Step:
    begin = time.perf_counter()
    try:
        detail = await action()
    except (BoxError, GuestRefused) as error:
        hint = getattr(error, "hint", None) or otherwise
        return Step(name, False, (time.perf_counter() - begin) * 1000, str(error), hint)
    return Step(name, True, (time.perf_counter() - begin) * 1000, detail)
