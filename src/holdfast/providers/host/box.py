"""A box on this machine, whose guest answers over a socket and passes descriptors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from holdfast.api.box.box import BoxInfo, LimitHit, Power, Wake
from holdfast.api.box.files import Files
from holdfast.api.box.process import Connection
from holdfast.providers.guest_box import GuestBox, ResourceUsage
from holdfast.providers.host.files import GuestFiles
from holdfast.providers.host.guest_client import GuestClient
from holdfast.providers.host.ports import connect_port
from holdfast.providers.host.process import GuestProcesses
from holdfast.providers.steps import Check

if TYPE_CHECKING:
    from holdfast.providers.host.guest_provider import GuestProvider


class LocalBox(GuestBox):
    def __init__(self, provider: GuestProvider, info: BoxInfo, wake: Wake | None = None) -> None:
        folder = provider.data_dir.box(info.id)
        self.guest = GuestClient(info.id, folder, info.created_at, wake)
        self._look = GuestClient(info.id, folder, info.created_at)
        """For looking at the box, which wakes nobody."""
        super().__init__(
            info,
            provider,
            self._look,
            GuestProcesses(self.guest, provider.watch, folder, provider.other_user),
            GuestProcesses(self._look, provider.watch, folder, provider.other_user),
        )
        self._provider = provider
        self.tools = provider.tools

    @cached_property
    def files(self) -> Files:  # type: ignore[override]  # made when used: most handles are for one command
        return GuestFiles(self.guest, self.own_workdir())

    def own_environment(self) -> Mapping[str, str]:
        return self._provider.environment(self.info)

    def own_workdir(self) -> str:
        return self._provider.workdir(self.info)

    # --- ports ---

    async def connect(self, port: int) -> Connection:
        return await connect_port(self.guest, port)

    # --- looking at it ---

    async def power(self) -> Power:
        return self._provider.power(self.id)

    async def usage(self) -> ResourceUsage:
        used, traffic = self._provider.usage(self.id), self._provider.traffic(self.id)
        return ResourceUsage(
            used.memory,
            used.cpu_seconds,
            out_of_memory=used.oom_kills,
            sent=None if traffic is None else traffic.sent,
            received=None if traffic is None else traffic.received,
            outgoing=None if traffic is None else traffic.open,
        )

    async def limits_hit(self) -> list[LimitHit]:
        why = self._provider.over_disk_limit(self.id)
        return [*([] if why is None else [LimitHit("disk", why)]), *await super().limits_hit()]

    async def disk(self) -> int:
        return await self._provider.disk_use(self.id)

    async def _ask_activity(self) -> Mapping[str, Any]:
        return self._provider.held_activity(self.id) or await super()._ask_activity()

    def _way_in(self) -> Sequence[tuple[str, Check]]:
        return ("box record", self._ping_record), ("guest socket", self._ping_socket)

    async def _ping_record(self) -> str:
        return self._provider.power(self.id).value

    async def _ping_socket(self) -> str:
        self._look.connect().close()
        return ""
