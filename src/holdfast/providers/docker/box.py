"""A box at Docker. Its guest is reached over a stream, and the daemon controls its lifecycle."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from holdfast.api.box.box import BoxInfo, Power, Wake
from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.spec import WORKSPACE, BoxSpec
from holdfast.api.errors.boxes import BoxUnreachable
from holdfast.providers.docker import containers
from holdfast.providers.guest_answers import GuestRefused
from holdfast.providers.guest_box import ResourceUsage
from holdfast.providers.stream import StreamBox, StreamGuestClient

if TYPE_CHECKING:
    from holdfast.providers.docker.provider import DockerProvider

_PEEK: Final = 4096
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
    """Where commands start: where the spec leaves it open, the image's own folder."""
    asked = str((found.get("Config") or {}).get("WorkingDir") or "")
    return asked if spec.workdir == WORKSPACE and asked.startswith("/") and asked != "/" else spec.workdir


async def used_inside(guest: StreamGuestClient) -> containers.ContainerUsage | None:
    """What a box uses, as its own control group says; None where it sees none. The daemon takes a second to tell."""
    found = await asyncio.gather(*(_peek(guest, path) for path in containers.ACCOUNTS))
    return containers.read_accounts(dict(zip(containers.ACCOUNTS, found, strict=True)))


async def _peek(guest: StreamGuestClient, path: str) -> bytes:
    """The start of a small file, without keeping the box awake by it; empty where it is not there."""
    request = {"op": "open", "path": path, "cwd": "/", "offset": 0, "length": _PEEK, "looks": True}
    data = b""
    try:
        with await guest.call(request) as call:
            await call.answer()
            while len(data) <= _PEEK and (piece := await call.streams[0].read()):
                data += piece
    except (GuestRefused, BoxUnreachable):
        return b""
    return data


class DockerBox(StreamBox):
    def __init__(
        self, provider: DockerProvider, info: BoxInfo, found: Mapping[str, Any], wake: Wake | None = None
    ) -> None:
        """`found` is what the daemon says of its container, or of its image."""
        environment = environment_of(found)
        whole = {**_DEFAULT_ENVIRONMENT, **environment, **provider.egress_environment(info.spec.network)}
        guest, workdir = provider.guest(info.id), workdir_of(found, info.spec)
        super().__init__(info, provider, guest, wake, environment=whole, workdir=workdir)
        self._provider = provider
        self._of_image = environment

    async def power(self) -> Power:
        return await self._provider.power(self.id)

    async def set_network(self, policy: NetworkPolicy) -> None:
        await super().set_network(policy)
        self.environment = {
            **_DEFAULT_ENVIRONMENT, **self._of_image, **self._provider.egress_environment(policy)
        }  # fmt: skip

    async def usage(self) -> ResourceUsage:
        used = await used_inside(self.guest) or await self._provider.usage(self.id)
        sent, received = self._provider.traffic(self.id)
        disk = await self._provider.disk_use(self.id)
        return ResourceUsage(used.memory, used.cpu_seconds, disk, used.out_of_memory, sent, received)
