"""The process provider: boxes on this machine **without isolation**, for development where sandboxes do not work.

A box is a folder and a guest process with all rights of the server's user. Registered only by an explicit flag. It
supports processes, files and ports, but no snapshots, volumes or limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Final

from holdfast.api.box.box import BoxInfo
from holdfast.api.errors.boxes import BoxUnreachable
from holdfast.boxes.capabilities import Capability
from holdfast.guest.init import codec
from holdfast.providers.host.disk.data_dir import BoxRecord, DataDir
from holdfast.providers.host.guest_client import GuestClient
from holdfast.providers.host.guest_provider import GuestProvider
from holdfast.providers.host.launcher_client import Launcher
from holdfast.providers.host.sandbox import Sandbox

log = logging.getLogger(__name__)

WARNING: Final = (
    "the process provider runs boxes on this machine WITHOUT isolation, with every right of the user that runs it:"
    " for development only"
)
_NAME: Final = "HOLDFAST_BOX"
_MARK: Final = "HOLDFAST_BOX_FOLDER"
"""In the environment of every process of a box, to find them when it ends. Other homes may use the same id."""
_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_ROUNDS: Final = 100


class ProcessSandbox(Sandbox):
    """Runs boxes as plain processes."""

    def __init__(self, provider: str, capabilities: frozenset[Capability], folder: Path, tools: Path | None) -> None:
        super().__init__(provider, DataDir(folder.absolute(), os.geteuid(), os.getegid()))
        self.capabilities = capabilities
        self.tools = None if tools is None else str(tools.absolute())
        self._launcher: Launcher | None = None

    async def open(self) -> None:
        if self._launcher is not None:
            return
        log.warning(WARNING)
        self.data_dir.prepare()
        self._launcher = Launcher({"stage": None, "binds": [], "uid": None, "gid": None})
        await self._launcher.start()

    def close(self) -> None:
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None

    def _files(self, id: str) -> Path:
        return self.data_dir.box(id) / "files"

    def workdir(self, info: BoxInfo) -> str:
        return f"{self._files(info.id)}{info.spec.workdir}".rstrip("/")

    def environment(self, info: BoxInfo) -> dict[str, str]:
        home = str(self._files(info.id) / "home")
        return {
            "PATH": f"{home}/.local/bin:{_PATH}",
            "HOME": home,
            "TMPDIR": str(self._files(info.id) / "tmp"),
            "LANG": "C.UTF-8",
            _NAME: info.id,
            _MARK: str(self.data_dir.box(info.id)),
        }

    def prepare_files(self, record: BoxRecord) -> None:
        files = self._files(record.id)
        for folder in (files / "home", files / "tmp", files / record.spec.workdir.lstrip("/")):
            folder.mkdir(parents=True, exist_ok=True)

    def recover(self, record: BoxRecord) -> BoxRecord:
        return record

    async def launch(self, record: BoxRecord) -> int:
        assert self._launcher is not None
        guest = Path(codec.__file__).with_name("init.py")
        request = {
            "folder": str(self.data_dir.box(record.id)),
            "program": sys.executable,
            "argv": [sys.executable, "-I", "-S", "-B", "-X", "utf8", str(guest), "unconfined"],
            "environment": {_MARK: str(self.data_dir.box(record.id))},
            "mounts": [],
            "rlimits": [],
        }
        return await self._launcher.launch(request, [])

    async def end(self, guest: GuestClient) -> None:
        """Also kills processes that outlive the guest, since there is no namespace. They are found by their
        environment."""
        await super().end(guest)
        found: list[int] = []
        for _ in range(_ROUNDS):
            found = await asyncio.to_thread(_marked, self.data_dir.box(guest.box))
            if not found:
                return
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.01)
        raise BoxUnreachable(f"processes of box {guest.box} do not end: {found}")


class ProcessProvider(GuestProvider):
    """Boxes as plain processes. Logs a warning when it is opened."""

    name = "process"
    isolation = "no isolation"
    capabilities = frozenset(
        {
            Capability.STOP,
            Capability.NETWORK_OPEN,
            Capability.PTY,
            Capability.DETACHED,
            Capability.CONNECT,
        }
    )
    sandbox: ProcessSandbox

    def __init__(self, folder: Path, *, tools: Path | None = None) -> None:
        """`tools` is the folder of the programs that this machine provides for boxes."""
        super().__init__(ProcessSandbox(self.name, self.capabilities, folder, tools))

    async def open(self) -> None:
        await super().open()
        await self.sandbox.open()

    async def close(self) -> None:
        await super().close()
        self.sandbox.close()


def _marked(folder: Path) -> list[int]:
    """Returns the live processes whose environment has the mark of this box."""
    mark = os.fsencode(f"{_MARK}={folder}")
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
