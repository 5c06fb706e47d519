"""A box at Docker. Its guest is reached over a stream, and the daemon controls its lifecycle."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from holdfast.api.box.box import BoxInfo, Wake
from holdfast.api.box.spec import WORKSPACE, BoxSpec
from holdfast.api.errors.boxes import BoxUnreachable
from holdfast.providers.docker import containers
from holdfast.providers.guest_box import ResourceUsage
from holdfast.providers.guest_protocol import GuestRefused
from holdfast.providers.stream import CloudBox, CloudLifecycle, StreamEgress, StreamGuestClient

_READ_BYTES: Final = 4096
_DEFAULT_ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}


def environment_of(found: Mapping[str, Any]) -> dict[str, str]:
    pairs = ((found.get("Config") or {}).get("Env")) or ()
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def workdir_of(found: Mapping[str, Any], spec: BoxSpec) -> str:
    """Returns the folder where commands start: that of the image, unless the spec names one."""
    asked = str((found.get("Config") or {}).get("WorkingDir") or "")
    return asked if spec.workdir == WORKSPACE and asked.startswith("/") and asked != "/" else spec.workdir


async def used_inside(guest: StreamGuestClient) -> containers.ContainerUsage | None:
    """Returns what a box uses, read from its own control group, or None. Asking the daemon would take a second."""
    found = await asyncio.gather(*(_read_start(guest, path) for path in containers.ACCOUNTS))
    return containers.read_accounts(dict(zip(containers.ACCOUNTS, found, strict=True)))


async def _read_start(guest: StreamGuestClient, path: str) -> bytes:
    """Returns the start of a small file, or nothing if it does not exist. Does not count as work in the box."""
    request = {"op": "open", "path": path, "cwd": "/", "offset": 0, "length": _READ_BYTES, "looks": True}
    data = b""
    try:
        with await guest.call(request) as call:
            await call.answer()
            while len(data) <= _READ_BYTES and (piece := await call.streams[0].read()):
                data += piece
    except (GuestRefused, BoxUnreachable):
        return b""
    return data


class DockerLifecycle(CloudLifecycle, Protocol):
    async def disk_use(self, id: str) -> int: ...

    async def usage(self, id: str) -> containers.ContainerUsage: ...


class DockerBox(CloudBox):
    def __init__(
        self,
        info: BoxInfo,
        lifecycle: DockerLifecycle,
        guest: StreamGuestClient,
        egress: StreamEgress,
        found: Mapping[str, Any],
        wake: Wake | None = None,
    ) -> None:
        """`found` is what the daemon reports about the container of the box, or about its image."""
        environment = {**_DEFAULT_ENVIRONMENT, **environment_of(found)}
        workdir = workdir_of(found, info.spec)
        super().__init__(info, lifecycle, guest, egress, wake, environment=environment, workdir=workdir)
        self._docker = lifecycle

    async def usage(self) -> ResourceUsage:
        used = await used_inside(self.guest) or await self._docker.usage(self.id)
        disk = await self._docker.disk_use(self.id)
        carried = await super().usage()
        return replace(
            carried, memory=used.memory, cpu_seconds=used.cpu_seconds, disk=disk, out_of_memory=used.out_of_memory
        )
