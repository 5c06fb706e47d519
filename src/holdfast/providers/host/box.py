"""A box on this machine, whose guest answers over a socket and passes descriptors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from holdfast.api.box.box import BoxInfo, LimitHit, Power, Wake
from holdfast.api.box.files import Files
from holdfast.api.box.process import Connection
from holdfast.providers.diagnosis import Check
from holdfast.providers.guest_box import GuestBox, Lifecycle, ResourceUsage
from holdfast.providers.host.disk.disk_guard import read_note
from holdfast.providers.host.files import GuestFiles
from holdfast.providers.host.guest_client import GuestClient
from holdfast.providers.host.inotify import FileWatch
from holdfast.providers.host.ports import connect_port
from holdfast.providers.host.process import GuestProcesses
from holdfast.providers.host.sandbox import Sandbox


class LocalLifecycle(Lifecycle, Protocol):
    """Changes the boxes of this machine, and reports on them."""

    def power(self, id: str) -> Power:
        """Raises `BoxGone`."""

    async def disk_use(self, id: str) -> int: ...


class LocalBox(GuestBox):
    def __init__(
        self, info: BoxInfo, lifecycle: LocalLifecycle, sandbox: Sandbox, watch: FileWatch, wake: Wake | None = None
    ) -> None:
        folder = sandbox.data_dir.box(info.id)
        self.guest = GuestClient(info.id, folder, info.created_at, wake, sandbox.gates)
        self._probe = GuestClient(info.id, folder, info.created_at, gates=sandbox.gates)
        """For inspecting the box, which does not wake it."""
        super().__init__(
            info,
            lifecycle,
            self._probe,
            GuestProcesses(self.guest, watch, folder, sandbox.other_user),
            GuestProcesses(self._probe, watch, folder, sandbox.other_user),
        )
        self._data_folder = folder
        self._lifecycle: LocalLifecycle = lifecycle
        self._sandbox = sandbox
        self.tools = sandbox.tools

    @cached_property
    def files(self) -> Files:  # type: ignore[override]  # made when used: most handles are for one command
        return GuestFiles(self.guest, self.own_workdir())

    def own_environment(self) -> Mapping[str, str]:
        return self._sandbox.environment(self.info)

    def own_workdir(self) -> str:
        return self._sandbox.workdir(self.info)

    # --- ports ---

    async def connect(self, port: int) -> Connection:
        return await connect_port(self.guest, port)

    # --- inspecting ---

    async def power(self) -> Power:
        return self._lifecycle.power(self.id)

    async def usage(self) -> ResourceUsage:
        used, traffic = self._sandbox.usage(self.id), self._sandbox.traffic(self.id)
        return ResourceUsage(
            used.memory,
            used.cpu_seconds,
            out_of_memory=used.oom_kills,
            sent=None if traffic is None else traffic.sent,
            received=None if traffic is None else traffic.received,
            outgoing=None if traffic is None else traffic.open,
        )

    async def limits_hit(self) -> list[LimitHit]:
        why = read_note(self._data_folder)
        return [*([] if why is None else [LimitHit("disk", why)]), *await super().limits_hit()]

    async def disk(self) -> int:
        return await self._lifecycle.disk_use(self.id)

    async def _ask_activity(self) -> Mapping[str, Any]:
        return self._sandbox.frozen_activity(self.id) or await super()._ask_activity()

    def _connection_checks(self) -> Sequence[tuple[str, Check]]:
        return ("box record", self._ping_record), ("guest socket", self._ping_socket)

    async def _ping_record(self) -> str:
        return self._lifecycle.power(self.id).value

    async def _ping_socket(self) -> str:
        self._probe.connect().close()
        return ""
