"""A box at Daytona. Its guest is reached over a stream, and the Daytona API controls its lifecycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from holdfast.api.box.box import BoxInfo, Wake
from holdfast.api.box.records import Preview
from holdfast.providers.guest_box import check_port
from holdfast.providers.stream import CloudBox, CloudLifecycle, StreamEgress, StreamGuestClient


class DaytonaLifecycle(CloudLifecycle, Protocol):
    async def preview(self, id: str, port: int, seconds: int | None = None) -> Preview:
        """Returns the address of a port at Daytona. With `seconds`, one that needs no header for that long."""


class DaytonaBox(CloudBox):
    def __init__(
        self,
        info: BoxInfo,
        lifecycle: DaytonaLifecycle,
        guest: StreamGuestClient,
        egress: StreamEgress,
        wake: Wake | None = None,
        *,
        environment: Mapping[str, str],
    ) -> None:
        whole = {"LANG": "C.UTF-8", "TERM": "dumb", **environment}
        super().__init__(info, lifecycle, guest, egress, wake, environment=whole)
        self._daytona = lifecycle

    async def preview(self, port: int) -> Preview:
        """Returns the address of a port at Daytona, with the header that opens it."""
        check_port(port)
        return await self._daytona.preview(self.id, port)

    async def signed_preview(self, port: int, seconds: int = 3600) -> Preview:
        """Returns an address that needs no header for that long. Whoever has it may visit the port."""
        check_port(port)
        return await self._daytona.preview(self.id, port, seconds)
