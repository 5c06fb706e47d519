"""A box behind a server of this machine: its ports and files are reached through its own guest, without the server.

Only whoever may read the server's home can do that. All else is asked of the server, which knows what the box is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from holdfast.boxes.errors import BoxUnreachable
from holdfast.boxes.process import Connection
from holdfast.boxes.spec import WORKSPACE
from holdfast.client.box import RemoteBox
from holdfast.client.box_connection import BoxConnection
from holdfast.client.box_models import BoxRecord
from holdfast.providers.local.files import GuestFiles
from holdfast.providers.local.link import Link
from holdfast.providers.local.ports import connect_port

PROVIDER: Final = "local"


def folder_of(record: BoxRecord, home: Path) -> Path | None:
    """Where the server keeps a box that can be reached so; None where it is of another kind, or another machine."""
    folder = home.absolute() / PROVIDER / "boxes" / record.id
    return folder if record.provider == PROVIDER and (folder / "guest.sock").exists() else None


class NearBox(RemoteBox):
    def __init__(self, boxes: BoxConnection, record: BoxRecord, home: Path) -> None:
        super().__init__(boxes, record)
        self._link = Link(record.id, home.absolute() / PROVIDER / "boxes" / record.id)
        self._link.wake = self._woken
        self._far_files = self.files
        if record.spec.image is None or record.spec.workdir != WORKSPACE:  # else the image says where commands start
            self.files = GuestFiles(self._link, record.spec.workdir)

    async def connect(self, port: int) -> Connection:
        try:
            return await connect_port(self._link, port)
        except BoxUnreachable:
            return await super().connect(port)

    async def _woken(self) -> bool:
        """The server wakes what sleeps as soon as it is asked for something in it. What somebody stopped stays so."""
        await self._far_files.stat("/")
        return True
