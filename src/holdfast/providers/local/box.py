"""A box on this machine: the contract kept by asking its guest, and its provider for what is about its life."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from holdfast.boxes.box import Box, BoxInfo, Deleted, Metrics, Power, Preview, Step
from holdfast.boxes.errors import (
    BoxError,
    BoxUnreachable,
    ConnectRefused,
    InvalidSpec,
    Unsupported,
)
from holdfast.boxes.network import NetworkPolicy
from holdfast.boxes.process import MAX_OUTPUT, Channel, Completed, Connection, Process, ProcessInfo, Sink
from holdfast.boxes.snapshots import Snapshot
from holdfast.boxes.spec import check_labels
from holdfast.providers.answers import GuestRefused, number_in, optional_number_in
from holdfast.providers.commands import start_request
from holdfast.providers.local.files import GuestFiles
from holdfast.providers.local.link import Link
from holdfast.providers.local.process import (
    PipeChannel,
    ProcessShelf,
    run_command,
)
from holdfast.providers.pipes import writable

if TYPE_CHECKING:
    from holdfast.providers.local.guest_provider import GuestProvider

_CONNECT_SECONDS: Final = 10.0


class SocketConnection(Connection):
    """A socket that the guest opened, now ours."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    async def read(self, limit: int = 1 << 16) -> bytes:
        try:
            return await asyncio.get_running_loop().sock_recv(self._socket, limit)
        except ConnectionError:
            return b""

    async def write(self, data: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except ConnectionError as error:
            raise BoxUnreachable(f"the box closed the connection ({error.strerror})") from None

    async def close_write(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise

    async def close(self) -> None:
        self._socket.close()


class LocalBox(Box):
    def __init__(self, provider: GuestProvider, info: BoxInfo) -> None:
        self.id = info.id
        self.info = info
        self._provider = provider
        folder = provider.ground.box(info.id)
        self.link = Link(info.id, folder)
        self.link.wake = self._wake
        self._look = Link(info.id, folder)
        """For looking at the box, which wakes nobody."""
        self.files = GuestFiles(self.link, provider.workdir(info))
        self._shelf = ProcessShelf(self.link, provider.watch, folder, provider.owner)

    async def _wake(self) -> bool:
        return self.wake is not None and await self.wake()

    # --- processes ---

    def _start_request(
        self, operation: str, argv: Sequence[str], env: Mapping[str, str] | None, cwd: str | None, **more: object
    ) -> dict[str, object]:
        whole = {**self._provider.environment(self.info), **self.spec.env, **(env or {})}
        workdir = self._provider.workdir(self.info)
        folder = workdir if cwd is None else cwd if cwd.startswith("/") else f"{workdir}/{cwd}"
        return start_request(operation, argv, whole, folder, **more)

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
        return await run_command(
            self.link,
            self._start_request("exec", argv, env, cwd),
            self._provider.owner,
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
        if pty and not (0 < rows <= 10_000 and 0 < columns <= 10_000):
            raise InvalidSpec(f"a terminal of {rows} rows and {columns} columns makes no sense")
        if pty:
            env = {"TERM": "xterm-256color", **(env or {})}
        size = [rows, columns] if pty else None
        return await self._shelf.spawn(self._start_request("spawn", argv, env, cwd, stdin=stdin, pty=size))

    async def process(self, id: str) -> Process:
        return self._shelf.get(id)

    async def processes(self) -> list[ProcessInfo]:
        return [await process.info() for process in self._shelf.all()]

    async def channel(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Channel:
        return await PipeChannel.open(self.link, self._start_request("exec", argv, env, cwd), self._provider.owner)

    # --- ports ---

    async def connect(self, port: int) -> Connection:
        if not 0 < port < 65536:
            raise InvalidSpec(f"there is no port {port}")
        for ipv6 in (False, True):
            connection = await self._connect(port, ipv6)
            if connection is not None:
                return SocketConnection(connection)
        raise ConnectRefused(f"nothing listens on port {port} in box {self.id}")

    async def _connect(self, port: int, ipv6: bool) -> socket.socket | None:
        try:
            _, given = await self.link.ask_descriptors({"op": "connect", "port": port, "ipv6": ipv6})
        except GuestRefused:
            return None
        if len(given) != 1:
            for each in given:
                os.close(each)
            raise BoxUnreachable("the guest handed out no connection")
        try:
            connection = socket.socket(fileno=given[0])
        except OSError:
            os.close(given[0])
            raise BoxUnreachable("the guest handed out something that is no connection") from None
        connection.setblocking(False)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await writable(connection.fileno())
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                return connection
        except TimeoutError:
            connection.close()
            raise ConnectRefused(f"port {port} in box {self.id} does not take connections") from None
        except BaseException:
            connection.close()
            raise
        connection.close()
        return None

    async def preview(self, port: int) -> Preview:
        if not 0 < port < 65536:
            raise InvalidSpec(f"there is no port {port}")
        raise Unsupported(
            f"provider {self.info.provider} has no preview: the server has an address for each port of a box",
            hint="ask the server (holdfast box port), or use connect",
        )

    async def set_network(self, policy: NetworkPolicy) -> None:
        await self._provider.set_network(self.id, policy)

    # --- lifecycle ---

    async def power(self) -> Power:
        return self._provider.power(self.id)

    async def stop(self) -> None:
        await self._provider.stop_box(self.id)

    async def start(self) -> None:
        await self._provider.start_box(self.id)

    async def pause(self) -> None:
        await self._provider.pause_box(self.id)

    async def delete(self) -> Deleted:
        return Deleted(await self._provider.remove(self.id))

    async def snapshot(self, *, labels: Mapping[str, str] | None = None) -> Snapshot:
        check_labels(labels or {})
        return await self._provider.snapshot_box(self.id, labels or {})

    async def fork(self, *, id: str | None = None, labels: Mapping[str, str] | None = None) -> Box:
        return await self._provider.fork_box(self.id, id, labels or {})

    # --- looking at it ---

    async def metrics(self) -> Metrics:
        return replace(await self.activity(), disk=await self._provider.disk_use(self.id))

    async def activity(self) -> Metrics:
        try:
            answer = self._provider.held_activity(self.id) or await self._look.ask({"op": "activity"})
        except GuestRefused as refused:
            raise BoxUnreachable(f"the guest of box {self.id} cannot say what it does: {refused}") from None
        usage = self._provider.usage(self.id)
        worked = optional_number_in(answer, "cpu")
        traffic = self._provider.traffic(self.id)
        return Metrics(
            number_in(answer, "processes"),
            number_in(answer, "connections"),
            number_in(answer, "idle") / 1000,
            memory=usage.memory,
            cpu_seconds=usage.cpu_seconds,
            out_of_memory=usage.oom_kills,
            listening=optional_number_in(answer, "listening"),
            sent=None if traffic is None else traffic.sent,
            received=None if traffic is None else traffic.received,
            outgoing=None if traffic is None else traffic.open,
            work_seconds=None if worked is None else worked / 1000,
        )

    async def ping(self) -> list[Step]:
        steps: list[Step] = []

        async def step(name: str, action: object, detail: str = "") -> bool:
            begin = time.perf_counter()
            try:
                told = await action  # type: ignore[misc]
                steps.append(Step(name, True, (time.perf_counter() - begin) * 1000, detail or str(told or "")))
                return True
            except (BoxError, GuestRefused) as error:
                hint = getattr(error, "hint", None) or f"holdfast box diagnose {self.id}"
                steps.append(Step(name, False, (time.perf_counter() - begin) * 1000, str(error), hint))
                return False

        async def record() -> str:
            return self._provider.power(self.id).value

        async def reach() -> str:
            self._look.connect().close()
            return ""

        async def answer() -> str:
            told = await self._look.ask({"op": "ping"})
            return f"python {told.get('python')}"

        async def run() -> str:
            done = await run_command(
                self._look,
                self._start_request("exec", ["true"], None, "/", looks=True),
                self._provider.owner,
                stdin=b"",
                timeout=10.0,
                on_stdout=None,
                on_stderr=None,
                max_output=MAX_OUTPUT,
            )
            return f"exit code {done.exit_code}"

        async def file() -> str:
            workdir = self._provider.workdir(self.info)
            await self._look.ask_path({"op": "stat", "path": workdir, "cwd": "/", "looks": True}, workdir, seconds=10.0)
            return workdir

        for name, action in (
            ("box record", record),
            ("guest socket", reach),
            ("guest", answer),
            ("run a command", run),
            ("workdir", file),
        ):
            if not await step(name, action()):
                break
        return steps

    async def close(self) -> None:
        return None
