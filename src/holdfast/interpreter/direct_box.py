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
from holdfast.client.resource import Resource
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


class DirectBox(RemoteBox):
    def __init__(self, box: RemoteBox, record: BoxRecord, home: Path, watch: FileWatch) -> None:
        """`box` is the same box as the client returns it. The caller closes `watch`."""
        super().__init__(box._boxes, record, box.spec.env)
        folder = home.absolute() / PROVIDER / "boxes" / record.id
        self._guest = GuestClient(record.id, folder, wake=self._wake)
        self._processes = GuestProcesses(self._guest, watch, folder, other_user=False)
        self._remote_files = self.files
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
        return DirectProcess(self._box, info, await self._processes.get(info.id))

    async def process(self, id: str) -> RemoteProcess:
        process = await self._processes.get(id)
        return DirectProcess(self._box, await process.info(), process)

    async def processes(self) -> list[ProcessInfo]:
        return await self._processes.all()

    async def _wake(self) -> bool:
        """Make the server wake a sleeping box by requesting something in it. A box that was stopped on purpose stays
        stopped.
        """
        await self._remote_files.stat("/")
        return True


class DirectProcess(RemoteProcess):
    """A process whose output is in files on this machine."""

    def __init__(self, box: Resource, info: ProcessInfo, direct: Process) -> None:
        super().__init__(box, info)
        self._direct = direct

    async def info(self) -> ProcessInfo:
        return await self._direct.info()

    async def read(self, stream: Stream = "stdout", offset: int = 0, limit: int = 1 << 20) -> bytes:
        return await self._direct.read(stream, offset, limit)

    async def output(self, stream: Stream = "stdout", offset: int = 0) -> AsyncIterator[Chunk]:
        async for chunk in self._direct.output(stream, offset):
            yield chunk

    async def wait(self, timeout: float | None = None) -> int:
        return await self._direct.wait(timeout)

    async def write(self, data: bytes) -> None:
        await self._direct.write(data)

    async def close_stdin(self) -> None:
        await self._direct.close_stdin()

    async def signal(self, number: int) -> None:
        await self._direct.signal(number)

    async def resize(self, rows: int, columns: int) -> None:
        await self._direct.resize(rows, columns)
