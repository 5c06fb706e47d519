"""A box on a server of this machine. Its ports, files and processes are reached through its guest directly.

This requires read access to the server's home. Everything else goes through the server, which knows the box's state.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from holdfast.api.box.process import Chunk, Connection, Process, ProcessInfo, Stream
from holdfast.api.box.records import BoxRecord
from holdfast.api.box.spec import WORKSPACE
from holdfast.api.errors.boxes import BoxUnreachable
from holdfast.client.box.box import RemoteBox
from holdfast.client.box.process import RemoteProcess
from holdfast.client.resource import BoxConnection
from holdfast.providers.guest_box import python_of
from holdfast.providers.host.files import GuestFiles
from holdfast.providers.host.guest_client import GuestClient
from holdfast.providers.host.inotify import FileWatch
from holdfast.providers.host.ports import connect_port
from holdfast.providers.host.process import GuestProcesses

PROVIDER: Final = "local"


def folder_of(record: BoxRecord, home: Path) -> Path | None:
    """Returns the folder of a box that can be reached directly, or None if it has another provider or machine."""
    folder = home.absolute() / PROVIDER / "boxes" / record.id
    return folder if record.provider == PROVIDER and (folder / "guest.sock").exists() else None


class NearBox(RemoteBox):
    def __init__(
        self,
        boxes: BoxConnection,
        record: BoxRecord,
        home: Path,
        watch: FileWatch,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(boxes, record, env)
        folder = home.absolute() / PROVIDER / "boxes" / record.id
        self._guest = GuestClient(record.id, folder, wake=self._woken)
        self._kept = GuestProcesses(self._guest, watch, folder, other_user=False)
        self._far_files = self.files
        if record.spec.image is None or record.spec.workdir != WORKSPACE:  # else the image sets the work folder
            self.files = GuestFiles(self._guest, record.spec.workdir)

    async def connect(self, port: int) -> Connection:
        try:
            return await connect_port(self._guest, port)
        except BoxUnreachable:
            return await super().connect(port)

    async def python(self) -> tuple[str, ...]:
        return python_of(await self._guest.ask({"op": "python"}), self.id)

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
        tree: bool = False,
    ) -> RemoteProcess:
        """Spawn through the server, which knows the box's environment. Later operations on the process bypass the
        server.
        """
        wanted = {"argv": list(argv), "env": dict(env or {}), "cwd": cwd, "stdin": stdin, "pty": pty, "rows": rows}
        wanted |= {"columns": columns, "tree": tree}
        answer = await self._box.ask("POST", "/processes", wanted, repeatable=False)
        info = answer.read(ProcessInfo.from_json)
        return NearProcess(self._box, info, await self._kept.get(info.id))

    async def process(self, id: str) -> RemoteProcess:
        kept = await self._kept.get(id)
        return NearProcess(self._box, await kept.info(), kept)

    async def processes(self) -> list[ProcessInfo]:
        return await self._kept.all()

    async def _woken(self) -> bool:
        """Make the server wake a sleeping box by requesting something in it. A box that was stopped on purpose stays
        stopped.
        """
        await self._far_files.stat("/")
        return True


class NearProcess(RemoteProcess):
    """A process whose output is in files on this machine."""

    def __init__(self, box: BoxConnection, info: ProcessInfo, kept: Process) -> None:
        super().__init__(box, info)
        self._kept = kept

    async def info(self) -> ProcessInfo:
        return await self._kept.info()

    async def read(self, stream: Stream = "stdout", offset: int = 0, limit: int = 1 << 20) -> bytes:
        return await self._kept.read(stream, offset, limit)

    async def output(self, stream: Stream = "stdout", offset: int = 0) -> AsyncIterator[Chunk]:
        async for chunk in self._kept.output(stream, offset):
            yield chunk

    async def wait(self, timeout: float | None = None) -> int:
        return await self._kept.wait(timeout)

    async def write(self, data: bytes) -> None:
        await self._kept.write(data)

    async def close_stdin(self) -> None:
        await self._kept.close_stdin()

    async def signal(self, number: int) -> None:
        await self._kept.signal(number)

    async def resize(self, rows: int, columns: int) -> None:
        await self._kept.resize(rows, columns)
