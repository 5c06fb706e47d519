"""A box at Modal. Its guest is reached over a stream, and the Modal API controls its lifecycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from holdfast.api.box.box import BoxInfo, Wake
from holdfast.api.box.records import Preview
from holdfast.providers.guest_box import check_port
from holdfast.providers.stream import CloudBox, CloudLifecycle, StreamEgress, StreamGuestClient


class ModalLifecycle(CloudLifecycle, Protocol):
    async def tunnel_url(self, id: str, port: int) -> str: ...

    async def disk_use(self, id: str) -> int | None: ...


class ModalBox(CloudBox):
    def __init__(
        self,
        info: BoxInfo,
        lifecycle: ModalLifecycle,
        guest: StreamGuestClient,
        egress: StreamEgress,
        wake: Wake | None = None,
        *,
        environment: Mapping[str, str],
    ) -> None:
        super().__init__(info, lifecycle, guest, egress, wake, environment=environment)
        self._modal = lifecycle

    async def preview(self, port: int) -> Preview:
        check_port(port)
        return Preview(await self._modal.tunnel_url(self.id, port))

    async def disk(self) -> int | None:
        return await self._modal.disk_use(self.id)
